#include "tools/cli/allocator.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "base/server/http.h"
#include "base/units.h"
#include "tools/cli/api.h"
#include "tools/cli/table.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

constexpr std::size_t kNamesShown = 3;

}  // namespace

Result<json::value> call_allocator(const Context& context, std::string_view method, const std::string& target,
                                   const json::value& body) {
    if (context.allocator.empty()) {
        return fail(ErrorCode::invalid_argument,
                    "this asks the cluster's allocator: name it with --allocator or $LARDER_ALLOCATOR");
    }
    const std::string text = body.is_null() ? "" : json::serialize(body);
    auto response = http_request(context.allocator, method, target, text);
    if (!response) {
        if (response.error().code != ErrorCode::unavailable) return std::unexpected(response.error());
        return fail(ErrorCode::unavailable, "no allocator answers (" + response.error().message +
                                                "): start larder-allocator, or name another with --allocator");
    }
    if (response->status >= 400) return std::unexpected(error_of_response(*response));
    json::error_code failure;
    json::value value = json::parse(response->body, failure);
    if (failure) return fail(ErrorCode::protocol, "the allocator's answer to " + target + " is not JSON");
    return value;
}

std::string rate_at(const json::object& object, std::string_view key) {
    return object.contains(key) ? format_bytes_per_second(number_at(object, key)) : "-";
}

std::string bytes_at(const json::object& object, std::string_view key) {
    return object.contains(key) ? format_bytes(count_at(object, key)) : "-";
}

std::string part_at(const json::object& object, std::string_view key) {
    return object.contains(key) ? format_part(number_at(object, key), 1) : "-";
}

std::string names_at(const json::object& object, std::string_view key) {
    const json::array& names = array_at(object, key);
    std::string text;
    for (std::size_t i = 0; i < names.size() && i < kNamesShown; ++i) {
        if (names[i].is_string()) text += (text.empty() ? "" : " ") + std::string(names[i].get_string());
    }
    if (names.size() > kNamesShown) text += " +" + std::to_string(names.size() - kNamesShown);
    return text.empty() ? "-" : text;
}

}  // namespace larder::cli
