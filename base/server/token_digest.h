#pragma once

// Bearer tokens are kept and compared as SHA-256 digests, so that the time of a comparison tells nothing of them.

#include <array>
#include <string_view>

namespace larder {

using TokenDigest = std::array<unsigned char, 32>;

TokenDigest token_digest(std::string_view token);
// Takes the same time for all digests.
bool is_same(const TokenDigest& left, const TokenDigest& right);

}  // namespace larder
