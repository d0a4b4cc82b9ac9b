#include "base/server/json_http.h"

#include <boost/json.hpp>

#include <utility>

#include "base/server/json_reader.h"
#include "base/server/json_text.h"

namespace larder {
namespace json = boost::json;

HttpResponse json_response(const json::object& body, unsigned status) {
    return {.status = status, .body = json_text(body) + "\n"};
}

HttpResponse method_not_allowed(std::string_view allowed) {
    HttpResponse response = http_error(405, "method_not_allowed", "allowed here: " + std::string(allowed));
    response.headers.emplace_back("Allow", allowed);
    return response;
}

HttpResponse no_such_path() {
    return http_error(404, "not_found", "there is nothing at this path");
}

HttpResponse done_response(const Result<void>& result) {
    if (!result) return http_error(result.error());
    return json_response({});
}

Result<json::object> request_object(const HttpRequest& request, json::storage_ptr storage) {
    if (request.body.empty()) return json::object{};
    return parse_json_object(request.body, "request body", std::move(storage));
}

}  // namespace larder
