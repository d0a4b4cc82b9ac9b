#pragma once

// Blocks whose bytes came wrong from the remote twice, against the checksums of the manifest: nobody asks the remote
// for them again, whoever wants one gets an error at once. The daemon keeps them in memory only, so a restart tries
// again; so does `dataset verify --remote`. An object that is put right is another object, whose blocks have other ids
// once the dataset is indexed again. Lives on its shard's thread; one empty look-up a miss is what it costs.

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
};

class Quarantine {
public:
    static constexpr std::size_t kListedMax = 100;

    bool contains(std::uint32_t block_id) const { return !blocks_.empty() && blocks_.contains(block_id); }
    void add(const protocol::Manifest& manifest, std::uint32_t block) {
        const protocol::Block found = manifest.block(block);
        blocks_.try_emplace(found.block_id, std::string(manifest.object(found.object).path), found.offset,
                            found.length);
    }
    void remove(std::uint32_t block_id) { blocks_.erase(block_id); }
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
    std::map<std::uint32_t, QuarantinedBlock> blocks_;  // by block id
};

}  // namespace larder::cache
