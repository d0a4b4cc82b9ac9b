#pragma once

// Percent encoding of text in URLs, by Boost.URL: every byte except the unreserved ones of RFC 3986 is written %XX. S3
// signatures are made over the same form.

#include <optional>
#include <string>
#include <string_view>

namespace larder {

// Encodes a path segment, or a query's key or value: slashes are encoded too.
std::string percent_encode(std::string_view text);
// Encodes a path: slashes stay.
std::string percent_encode_path(std::string_view path);
// Appends an encoded path without allocating, if `output` has room for it.
void append_percent_encoded_path(std::string_view path, std::string& output);

// Returns nothing if a % is not followed by two hexadecimal digits.
std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space = false);
// Decodes names that people write: a % without two hexadecimal digits stays as it is.
std::string percent_decode_leniently(std::string_view text);

}  // namespace larder
