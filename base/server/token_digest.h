#pragma once

// Bearer tokens are kept and compared as SHA-256 digests, so that the time of a comparison tells nothing of them.

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace larder {

using TokenDigest = std::array<unsigned char, 32>;

// True if a token has 16 to 512 letters that RFC 6750 lets a client send.
bool is_good_token(std::string_view token);
// Returns "must have 16 to 512 letters, digits or -._~+/=", for messages.
std::string good_token_text();

TokenDigest token_digest(std::string_view token);
// Takes the same time for all digests.
bool is_same(const TokenDigest& left, const TokenDigest& right);

}  // namespace larder
