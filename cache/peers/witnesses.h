#pragma once

// Decides which digests of a dataset's blocks this node trusts although it has not read the blocks itself: those that
// enough other nodes took from the remote, all the same. A single node that lies can neither make a wrong digest
// trusted nor keep a right one from being trusted. One thread at a time.

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "cache/shard/block_digest.h"

namespace larder::cache {

class Witnesses {
public:
    static constexpr unsigned kNeededMax = 4;
    using Node = std::uint16_t;  // above 0

    // `needed`: so many nodes must say the same, 1 to kNeededMax.
    Witnesses(std::uint32_t block_count, unsigned needed);

    // `node` says that the block has this digest. Replaces what the node said of the block before.
    void note(Node node, std::uint32_t block, const BlockDigest& digest);
    // Not known if too few nodes agree, or if different digests have enough nodes.
    BlockDigest agreed(std::uint32_t block) const;
    // Forgets what nodes said of the block if it differs from `right`, and returns these nodes.
    std::vector<Node> take_contradicting(std::uint32_t block, const BlockDigest& right);

private:
    // Claims beyond this number of different ones are ignored.
    static constexpr std::size_t kOtherClaimsMax = 7;
    struct Claim {
        BlockDigest digest;
        std::array<Node, kNeededMax> nodes{};  // 0: free
    };

    static bool is_made_by(const Claim& claim, Node node);
    static void withdraw(Claim& claim, Node node);
    bool is_enough(const Claim& claim) const;

    const unsigned needed_;
    std::vector<Claim> claims_;                                           // by block
    std::unordered_map<std::uint32_t, std::vector<Claim>> other_claims_;  // by block: claims that differ
};

}  // namespace larder::cache
