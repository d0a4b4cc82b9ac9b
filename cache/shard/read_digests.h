#pragma once

// The digests of the blocks of a dataset that this node itself has read from the remote. The node checks blocks of
// peers against these digests, and tells them to its peers as a witness (cache/peers/witnesses.h). In memory only. Any
// thread.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "cache/protocol/manifest.h"
#include "cache/shard/block_digest.h"

namespace larder::cache {

class ReadDigests {
public:
    void note(std::uint32_t block_id, const BlockDigest& digest);
    // Not known if the block was not read from the remote.
    BlockDigest find(std::uint32_t block_id) const;
    // Returns a digest for each block of the manifest.
    std::vector<BlockDigest> of(const protocol::Manifest& manifest) const;

    // The entries noted after `change`, at most `most`, the earliest first.
    struct Changes {
        std::vector<std::pair<std::uint32_t, BlockDigest>> blocks;  // by index in the manifest
        std::uint64_t change = 0;                                   // the last one included: ask from here next
    };
    Changes after(std::uint64_t change, const protocol::Manifest& manifest, std::size_t most) const;
    // Rises with every change.
    std::uint64_t changes() const;

private:
    struct Entry {
        BlockDigest digest;
        std::uint64_t change = 0;
    };

    mutable std::mutex mutex_;
    std::vector<Entry> entries_;  // by block id
    std::uint64_t changes_ = 0;
};

}  // namespace larder::cache
