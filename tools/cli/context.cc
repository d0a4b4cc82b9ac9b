#include "tools/cli/context.h"

#include <cstdio>
#include <filesystem>

#include "base/environment.h"
#include "base/server/http.h"
#include "tools/cli/table.h"

namespace larder::cli {

std::string jobs_socket(const Context& context) {
    if (std::string named = environment("LARDER_SOCKET"); !named.empty()) return named;
    return (std::filesystem::path(context.admin_socket).parent_path() / "larderd.sock").string();
}

int report(const Context& context, const Error& error) {
    std::fprintf(stderr, "larder: %s\n", printable(error.message, "\n\t").c_str());
    if (context.json) std::fputs(http_error(error).body.c_str(), stdout);
    switch (error.code) {
        case ErrorCode::invalid_argument: return kUsage;
        case ErrorCode::unavailable: return kUnreachable;
        case ErrorCode::not_found: return kNotFound;
        case ErrorCode::permission_denied:
        case ErrorCode::already_exists: return kRefused;
        default: return kFailed;
    }
}

}  // namespace larder::cli
