#pragma once

// What other nodes hold of one dataset version, as they last said: made by the control plane, handed to the shard,
// never changed. A block that a peer holds is read from there: it costs no remote byte, and is not cached a second
// time.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cache/device.h"
#include "cache/protocol/manifest.h"
#include "cache/remote/peer_remote.h"

namespace larder::cache {

inline constexpr std::size_t kPeersMax = 255;

struct PeerBlocks {
    struct Peer {
        std::string key;  // the same as long as the same door leads there
        // Reads and offers take the block's index in the manifest as their path, in decimal, and carry its record.
        std::function<Result<std::unique_ptr<PeerRemote>>(Device&)> open;
        std::uint64_t room_bytes = 0;  // of its quota for the dataset that is free
    };

    std::shared_ptr<const protocol::Manifest> manifest;  // indices below are of this version
    std::vector<Peer> peers;                             // at most kPeersMax
    std::vector<std::uint8_t> holder;                    // by block: 0: nobody; else 1 + index in `peers`
    std::uint64_t bytes = 0;                             // of all blocks that somebody holds
    bool lost_some = false;                              // what was held before is not any more

    bool holds(std::uint32_t block) const { return block < holder.size() && holder[block] != 0; }
};

}  // namespace larder::cache
