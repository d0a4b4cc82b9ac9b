#include "base/server/page.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/server/json_http.h"

namespace larder {
namespace {

constexpr std::string_view kIndex = "index.html";

constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

constexpr std::array kTypes{std::pair{std::string_view(".html"), "text/html; charset=utf-8"},
                            std::pair{std::string_view(".js"), "text/javascript; charset=utf-8"},
                            std::pair{std::string_view(".css"), "text/css; charset=utf-8"}};

std::string type_of(std::string_view file) {
    const auto found = std::ranges::find_if(kTypes, [&](const auto& type) { return file.ends_with(type.first); });
    return found == kTypes.end() ? "application/octet-stream" : found->second;
}

}  // namespace

HttpResponse page_response(const HttpRequest& request) {
    if (request.path.size() > 1) return no_such_path();
    const bool is_root = request.path.empty() || request.path.front().empty();
    const std::string_view name = is_root ? kIndex : std::string_view(request.path.front());
    const auto found = std::ranges::find(embedded_page(), name, &EmbeddedFile::name);
    if (found == embedded_page().end()) return no_such_path();
    return {.content_type = type_of(name),
            .body = std::string(found->bytes.begin(), found->bytes.end()),
            .headers = {{"Content-Security-Policy", std::string(kPolicy)},
                        {"X-Content-Type-Options", "nosniff"},
                        {"Referrer-Policy", "no-referrer"},
                        // An upgraded daemon has another page.
                        {"Cache-Control", "no-cache"}}};
}

}  // namespace larder
