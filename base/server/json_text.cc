#include "base/server/json_text.h"

#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "base/utf8.h"

namespace larder {
namespace json = boost::json;
namespace {

// Numbers outside these bounds have so many digits that an exponent is easier to read; JavaScript has the same bounds.
constexpr double kLeastPlain = 1e-7;
constexpr double kMostPlain = 1e21;

void put(std::string& text, double number) {
    // JSON has no infinity and no NaN; Boost's parser reads its own spelling of them.
    if (!std::isfinite(number)) {
        text += json::serialize(json::value(number));
        return;
    }
    const double size = std::abs(number);
    const bool plain = size == 0 || (size >= kLeastPlain && size < kMostPlain);
    std::array<char, 64> digits{};
    const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
    // -0 is written as 0.
    const auto [end, error] =
        std::to_chars(digits.data(), digits.data() + digits.size(), size == 0 ? 0 : number, format);
    text.append(digits.data(), end);
}

template <typename Integer>
void put_integer(std::string& text, Integer number) {
    std::array<char, 24> digits{};
    const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), number);
    text.append(digits.data(), end);
}

void put(std::string& text, std::string_view string) {
    const auto is_plain = [](char c) { return c >= ' ' && c < 0x7f && c != '"' && c != '\\'; };
    if (!std::ranges::all_of(string, is_plain)) {
        text += is_utf8(string) ? json::serialize(string) : json::serialize(escape_non_utf8(string));
        return;
    }
    text += '"';
    text += string;
    text += '"';
}

void put(std::string& text, const json::value& value);

void put(std::string& text, const json::array& array) {
    text += '[';
    std::string_view between;
    for (const json::value& value : array) {
        text += between;
        put(text, value);
        between = ",";
    }
    text += ']';
}

void put(std::string& text, const json::object& object) {
    text += '{';
    std::string_view between;
    for (const auto& [key, value] : object) {
        text += between;
        put(text, std::string_view(key));
        text += ':';
        put(text, value);
        between = ",";
    }
    text += '}';
}

void put(std::string& text, const json::value& value) {
    switch (value.kind()) {
        case json::kind::object: return put(text, value.get_object());
        case json::kind::array: return put(text, value.get_array());
        case json::kind::string: return put(text, std::string_view(value.get_string()));
        case json::kind::double_: return put(text, value.get_double());
        case json::kind::int64: return put_integer(text, value.get_int64());
        case json::kind::uint64: return put_integer(text, value.get_uint64());
        default: text += json::serialize(value);
    }
}

}  // namespace

std::string json_text(const json::value& value) {
    std::string text;
    put(text, value);
    return text;
}

std::string json_text(const json::object& object) {
    std::string text;
    put(text, object);
    return text;
}

std::string json_text(const json::array& array) {
    std::string text;
    put(text, array);
    return text;
}

}  // namespace larder
