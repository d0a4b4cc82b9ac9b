#pragma once

// The answer of a node to a peer that asks which digests of a dataset's blocks the node has taken from the remote since
// a state: a header, then the index and the digest of each block. All integers are little-endian.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/peers/held_answer.h"
#include "cache/shard/block_digest.h"

namespace larder::cache {

// A peer asks again for the rest.
inline constexpr std::size_t kDigestsPerAnswerMax = 50'000;

struct DigestsAnswer {
    HeldState state;  // of the node's digests after these
    std::vector<std::pair<std::uint32_t, BlockDigest>> blocks;
};

std::size_t digests_bytes_max();
std::string encode_digests(const DigestsAnswer& answer, std::uint32_t block_count);
// Nothing if `answer` is malformed or is about another number of blocks.
std::optional<DigestsAnswer> decode_digests(std::span<const std::byte> answer, std::uint32_t block_count);

}  // namespace larder::cache
