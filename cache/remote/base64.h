#pragma once

// Base64 (RFC 4648), by OpenSSL.

#include <optional>
#include <string>
#include <string_view>

namespace larder::cache {

std::string base64_encode(std::string_view bytes);
// The alphabet of URLs, without padding, as JWTs have it.
std::string base64url_encode(std::string_view bytes);
// Returns nothing if the text is not base64 with its padding.
std::optional<std::string> base64_decode(std::string_view text);

}  // namespace larder::cache
