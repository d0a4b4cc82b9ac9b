#pragma once

// Text in URLs, by Boost.URL: every byte but the unreserved ones of RFC 3986 is written %XX. That is also the form
// signatures of S3 are made over.

#include <optional>
#include <string>
#include <string_view>

namespace larder {

// Of a segment, or of a query's key or value: slashes are encoded too.
std::string percent_encode(std::string_view text);
// Of a path: slashes stay.
std::string percent_encode_path(std::string_view path);
// Where `to` has room for it, without allocating.
void append_percent_encoded_path(std::string_view path, std::string& to);

// Nothing where a % is not followed by two hexadecimal digits.
std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space = false);
// For names that people write: what is no such triple stays as it is.
std::string percent_decode_leniently(std::string_view text);

}  // namespace larder
