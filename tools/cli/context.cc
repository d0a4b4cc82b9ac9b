#include "tools/cli/context.h"

#include <cstdio>

#include "base/server/http.h"

namespace larder::cli {

int report(const Context& context, const Error& error) {
    std::fprintf(stderr, "larder: %s\n", error.message.c_str());
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
