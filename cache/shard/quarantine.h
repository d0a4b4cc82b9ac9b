#pragma once

// Blocks that are bad at the remote, of two kinds. Where the manifest has checksums, those whose bytes came without
// theirs twice: nobody asks the remote for them again, whoever wants one gets an error at once. And those that a reader
// found damaged by what stands in them, and that came alike when they were read anew: they are served as the remote has
// them, as the daemon takes no client's word against others, but whoever finds one damaged gets an error without
// another read. The daemon keeps them in memory only, so a restart tries again; so does `dataset verify --remote`. An
// object that is put right is another object, whose blocks have other ids once the dataset is indexed again. Lives on
// its shard's thread; one empty look-up a miss is what it costs.

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
    bool by_reader = false;  // found by what stands in it
};

class Quarantine {
public:
    static constexpr std::size_t kListedMax = 100;

    // Nobody is to have it.
    bool contains(std::uint32_t block_id) const { return has(block_id, false); }
    // Whoever says that it is damaged is right.
    bool reported(std::uint32_t block_id) const { return has(block_id, true); }

    void add(const protocol::Manifest& manifest, std::uint32_t block) { put(manifest, block, false); }
    void add_reported(const protocol::Manifest& manifest, std::uint32_t block) { put(manifest, block, true); }
    // The remote's bytes are as they were indexed.
    void remove(std::uint32_t block_id) {
        if (contains(block_id)) blocks_.erase(block_id);
    }
    void end_reported(std::uint32_t block_id) {
        if (reported(block_id)) blocks_.erase(block_id);
    }
    std::size_t size() const { return blocks_.size(); }
    // At most kListedMax.
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
