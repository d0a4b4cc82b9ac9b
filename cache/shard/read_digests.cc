#include "cache/shard/read_digests.h"

#include <algorithm>

namespace larder::cache {

void ReadDigests::note(std::uint32_t block_id, const BlockDigest& digest) {
    const std::lock_guard lock(mutex_);
    if (block_id >= entries_.size()) entries_.resize(std::size_t{block_id} + 1);
    Entry& entry = entries_[block_id];
    if (entry.digest == digest) return;
    entry = {.digest = digest, .change = ++changes_};
}

BlockDigest ReadDigests::find(std::uint32_t block_id) const {
    const std::lock_guard lock(mutex_);
    return block_id < entries_.size() ? entries_[block_id].digest : BlockDigest{};
}

std::vector<BlockDigest> ReadDigests::of(const protocol::Manifest& manifest) const {
    std::vector<BlockDigest> digests(manifest.block_count());
    const std::lock_guard lock(mutex_);
    for (std::uint32_t block = 0; block < manifest.block_count(); ++block) {
        const std::uint32_t block_id = manifest.block_id(block);
        if (block_id < entries_.size()) digests[block] = entries_[block_id].digest;
    }
    return digests;
}

ReadDigests::Changes ReadDigests::after(std::uint64_t change, const protocol::Manifest& manifest,
                                        std::size_t most) const {
    struct Found {
        std::uint64_t change;
        std::uint32_t block;
        BlockDigest digest;
    };
    std::vector<Found> found;
    Changes changes;
    {
        const std::lock_guard lock(mutex_);
        changes.change = changes_;
        if (change == changes_) return changes;
        for (std::uint32_t block = 0; block < manifest.block_count(); ++block) {
            const std::uint32_t block_id = manifest.block_id(block);
            if (block_id >= entries_.size() || entries_[block_id].change <= change) continue;
            found.push_back({entries_[block_id].change, block, entries_[block_id].digest});
        }
    }
    if (found.size() > most) {
        std::ranges::nth_element(found, found.begin() + static_cast<std::ptrdiff_t>(most), {}, &Found::change);
        found.resize(most);
        changes.change = std::ranges::max(found, {}, &Found::change).change;
    }
    for (const Found& entry : found) changes.blocks.emplace_back(entry.block, entry.digest);
    return changes;
}

std::uint64_t ReadDigests::changes() const {
    const std::lock_guard lock(mutex_);
    return changes_;
}

}  // namespace larder::cache
