#include "base/server/json_reader.h"

#include <boost/json.hpp>

#include <cmath>

#include "base/server/json_text.h"

namespace larder {
namespace json = boost::json;

Result<json::object> parse_json_object(std::string_view text, std::string_view what, json::storage_ptr storage) {
    json::error_code error;
    json::value value = json::parse(text, error, std::move(storage));
    if (error) return fail(ErrorCode::invalid_argument, std::string(what) + " is not JSON: " + error.message());
    if (!value.is_object()) return fail(ErrorCode::invalid_argument, std::string(what) + " is not a JSON object");
    return std::move(value.as_object());
}

const json::value* JsonReader::take(std::string_view key, bool required) {
    const auto member = object_.find(key);
    if (member != object_.end()) {
        is_read_[static_cast<std::size_t>(member - object_.begin())] = true;
        return &member->value();
    }
    if (required) reject(key, "is missing");
    return nullptr;
}

void JsonReader::reject(std::string_view key, std::string_view why) {
    if (error_) return;
    const std::string prefix = where_.empty() ? "" : where_ + ": ";
    error_ = Error{ErrorCode::invalid_argument, prefix + "key \"" + std::string(key) + "\" " + std::string(why)};
}

void JsonReader::wrong_type(std::string_view key, std::string_view wanted) {
    reject(key, "is " + json_text(*object_.if_contains(key)) + ", but must be " + std::string(wanted));
}

std::optional<std::string> JsonReader::optional_string(std::string_view key) {
    const json::value* value = take(key, false);
    if (value == nullptr) return std::nullopt;
    if (const json::string* text = value->if_string()) return std::string(text->data(), text->size());
    wrong_type(key, "a string");
    return std::nullopt;
}

std::string JsonReader::string(std::string_view key) {
    if (!has(key)) take(key, true);
    return optional_string(key).value_or("");
}

std::optional<std::uint64_t> JsonReader::optional_unsigned_integer(std::string_view key) {
    const json::value* value = take(key, false);
    if (value == nullptr) return std::nullopt;
    if (const std::uint64_t* number = value->if_uint64()) return *number;
    if (const std::int64_t* number = value->if_int64(); number != nullptr && *number >= 0) {
        return static_cast<std::uint64_t>(*number);
    }
    wrong_type(key, "an integer, 0 or greater");
    return std::nullopt;
}

std::uint64_t JsonReader::unsigned_integer(std::string_view key) {
    if (!has(key)) take(key, true);
    return optional_unsigned_integer(key).value_or(0);
}

std::optional<std::int64_t> JsonReader::optional_integer(std::string_view key) {
    const json::value* value = take(key, false);
    if (value == nullptr) return std::nullopt;
    // The parser returns a uint64 for numbers above the int64 range.
    if (const std::int64_t* number = value->if_int64()) return *number;
    wrong_type(key, "an integer of 64 bits");
    return std::nullopt;
}

double JsonReader::number(std::string_view key) {
    const json::value* value = take(key, true);
    if (value == nullptr) return 0;
    if (value->is_number()) {
        const double number = value->to_number<double>();
        if (std::isfinite(number) && number >= 0) return number;
    }
    wrong_type(key, "a number, 0 or greater");
    return 0;
}

bool JsonReader::boolean(std::string_view key) {
    const json::value* value = take(key, true);
    if (value == nullptr) return false;
    if (const bool* boolean = value->if_bool()) return *boolean;
    wrong_type(key, "true or false");
    return false;
}

std::optional<bool> JsonReader::optional_boolean(std::string_view key) {
    const json::value* value = take(key, false);
    if (value == nullptr) return std::nullopt;
    if (const bool* boolean = value->if_bool()) return *boolean;
    wrong_type(key, "true or false");
    return std::nullopt;
}

const json::object* JsonReader::optional_object(std::string_view key) {
    const json::value* value = take(key, false);
    if (value == nullptr) return nullptr;
    if (const json::object* object = value->if_object()) return object;
    wrong_type(key, "an object");
    return nullptr;
}

const json::object& JsonReader::object(std::string_view key) {
    static const json::object empty;
    if (!has(key)) take(key, true);
    const json::object* object = optional_object(key);
    return object == nullptr ? empty : *object;
}

const json::array& JsonReader::array(std::string_view key) {
    static const json::array empty;
    const json::value* value = take(key, true);
    if (value == nullptr) return empty;
    if (const json::array* array = value->if_array()) return *array;
    wrong_type(key, "an array");
    return empty;
}

Result<void> JsonReader::finish() {
    for (std::size_t i = 0; i < is_read_.size(); ++i) {
        if (!is_read_[i]) reject(object_.begin()[static_cast<std::ptrdiff_t>(i)].key(), "is unknown");
    }
    if (error_) return std::unexpected(*error_);
    return {};
}

}  // namespace larder
