#pragma once

// Names of objects in URLs: every byte but the unreserved ones of RFC 3986 is written %XX, slashes stay. That is also
// the form signatures of S3 are made over.

#include <string>
#include <string_view>

namespace larder::cache {

void append_percent_encoded(std::string_view path, std::string& to);
// Of a query's value: slashes are encoded too.
std::string percent_encoded_value(std::string_view value);
// %XX resolved; what is no such triple stays as it is.
std::string percent_decoded(std::string_view text);

}  // namespace larder::cache
