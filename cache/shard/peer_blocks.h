#pragma once

// The blocks of one dataset version that other nodes hold, as they last reported. The control plane makes a PeerBlocks
// and hands it to the shard; it never changes. A block that a peer holds is read from that peer: it costs no remote
// bytes and is not cached a second time. The bytes of a peer are checked against a digest that does not come from that
// peer alone. A block without such a digest counts as not held by peers.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cache/device.h"
#include "cache/protocol/manifest.h"
#include "cache/remote/peer_remote.h"
#include "cache/shard/block_digest.h"
#include "cache/shard/peer_conduct.h"

namespace larder::cache {

inline constexpr std::size_t kPeersMax = 255;

struct PeerBlocks {
    struct Peer {
        std::string key;  // identifies the peer and dataset: an equal key reuses the open link
        // Opens the peer. Reads and offers use the block's index in the manifest, in decimal, as the path, and carry
        // the block's record.
        std::function<Result<std::unique_ptr<PeerRemote>>(Device&)> open;
        std::uint64_t room_bytes = 0;  // free in the peer's quota for the dataset
        std::shared_ptr<PeerConduct> conduct = nullptr;
    };

    std::shared_ptr<const protocol::Manifest> manifest;  // the version of the block indices below
    std::vector<Peer> peers;                             // at most kPeersMax
    std::vector<std::uint8_t> holder;                    // by block: 0 if no peer holds it, else 1 + index in `peers`
    // The trusted digests, by block. Null: peers are trusted.
    std::shared_ptr<const std::vector<BlockDigest>> digests = nullptr;
    std::uint64_t bytes = 0;  // of all blocks that a peer holds
    bool lost_some = false;   // a block that a peer held before is no longer held

    bool holds(std::uint32_t block) const { return block < holder.size() && holder[block] != 0; }
    // Not known: the peers are trusted, or nobody has enough witnesses for the block.
    BlockDigest digest(std::uint32_t block) const {
        return digests != nullptr && block < digests->size() ? (*digests)[block] : BlockDigest{};
    }
};

}  // namespace larder::cache
