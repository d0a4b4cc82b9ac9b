#pragma once

// Blocks that are bad at the remote, of two kinds. Some fail the manifest's checksum: the bytes of two fetches in turn
// did not match it. The remote is not asked for such a block again, and every fetch of the block gets an error at once.
// Others were reported by a reader that found the content damaged; then one refetch brought the same bytes, or two
// refetches brought different ones. Such a block is still served, because the daemon trusts no client against others,
// but a reader that reports damage gets an error without another read. The quarantine is in memory only, so the remote
// is asked again after a restart, and by `dataset verify --remote`. A repaired object is another object, whose blocks
// have other ids once the dataset is indexed again. Lives on its shard's thread; costs one empty look-up per miss.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cache/protocol/manifest.h"

namespace larder::cache {

struct QuarantinedBlock {
    std::string object;  // path
    std::uint64_t offset = 0;
    std::uint32_t length = 0;
    bool by_reader = false;  // a reader found the content damaged
};

class Quarantine {
public:
    static constexpr std::size_t kListedMax = 100;

    // True if the block must not be served.
    bool contains(std::uint32_t block_id) const { return has(block_id, false); }
    // True if reports that the block is damaged are confirmed.
    bool reported(std::uint32_t block_id) const { return has(block_id, true); }

    void add(const protocol::Manifest& manifest, std::uint32_t block) { put(manifest, block, false); }
    void add_reported(const protocol::Manifest& manifest, std::uint32_t block) { put(manifest, block, true); }
    // Ends the quarantine: the remote's bytes match the manifest again.
    void remove(std::uint32_t block_id) {
        if (contains(block_id)) blocks_.erase(block_id);
    }
    void end_reported(std::uint32_t block_id) {
        if (reported(block_id)) blocks_.erase(block_id);
    }
    std::size_t size() const { return blocks_.size(); }
    // At most kListedMax blocks, in order of block id.
    std::vector<QuarantinedBlock> listed() const {
        std::vector<QuarantinedBlock> list;
        for (const auto& [id, block] : blocks_) {
            if (list.size() == kListedMax) break;
            list.push_back(block);
        }
        return list;
    }

private:
    bool has(std::uint32_t block_id, bool by_reader) const {
        if (blocks_.empty()) return false;
        const auto found = blocks_.find(block_id);
        return found != blocks_.end() && found->second.by_reader == by_reader;
    }
    void put(const protocol::Manifest& manifest, std::uint32_t block, bool by_reader) {
        const protocol::Block found = manifest.block(block);
        if (by_reader && contains(found.block_id)) return;
        blocks_.insert_or_assign(found.block_id,
                                 QuarantinedBlock{.object = std::string(manifest.object(found.object).path),
                                                  .offset = found.offset,
                                                  .length = found.length,
                                                  .by_reader = by_reader});
    }

    std::map<std::uint32_t, QuarantinedBlock> blocks_;  // by block id
};

}  // namespace larder::cache
