#pragma once

// Strict reading of a JSON object. Each key is read by name and type; `finish` returns the first error, unread keys
// included, in a sentence that names the key. Getters return empty values after an error, so a caller reads everything
// and checks once.

#include <boost/container/small_vector.hpp>
#include <boost/json/object.hpp>
#include <boost/json/storage_ptr.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace larder {

// Parses the object in `text`; `what` names the text in errors ("request body", a file's path). The object's memory
// comes from `storage`.
Result<boost::json::object> parse_json_object(std::string_view text, std::string_view what,
                                              boost::json::storage_ptr storage = {});

class JsonReader {
public:
    // `object` must outlive the reader. `where` is put before errors.
    JsonReader(const boost::json::object& object, std::string where)
        : object_(object), where_(std::move(where)), is_read_(object.size()) {}

    bool has(std::string_view key) const { return object_.contains(key); }

    std::string string(std::string_view key);
    std::uint64_t unsigned_integer(std::string_view key);
    double number(std::string_view key);  // finite, not negative
    bool boolean(std::string_view key);
    const boost::json::object& object(std::string_view key);
    const boost::json::array& array(std::string_view key);

    std::optional<std::string> optional_string(std::string_view key);
    std::optional<std::uint64_t> optional_unsigned_integer(std::string_view key);
    std::optional<std::int64_t> optional_integer(std::string_view key);  // may be negative
    std::optional<bool> optional_boolean(std::string_view key);
    const boost::json::object* optional_object(std::string_view key);

    // Reports an error that the caller found in a key.
    void reject(std::string_view key, std::string_view why);

    Result<void> finish();

private:
    const boost::json::value* take(std::string_view key, bool required);
    void wrong_type(std::string_view key, std::string_view wanted);

    const boost::json::object& object_;
    std::string where_;
    boost::container::small_vector<bool, 32> is_read_;  // by position in the object
    std::optional<Error> error_;
};

}  // namespace larder
