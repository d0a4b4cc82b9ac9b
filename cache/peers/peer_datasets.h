#pragma once

// The datasets of this node that its peers may see. The control thread sets them for the threads that serve and ask
// peers. Two nodes mean the same blocks if they have a dataset of the same name whose manifests have the same
// fingerprint: the same objects in the same versions, divided in the same way.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/protocol/manifest.h"
#include "cache/shard/shard_thread.h"

namespace larder::cache {

// Larger blocks are not lent, because a lent block passes through memory as a whole.
inline constexpr std::uint32_t kLentBlockBytesMax = 64u << 20;

struct PeerDataset {
    std::string name;
    std::uint64_t dataset_id = 0;
    ShardThread* shard = nullptr;
    std::shared_ptr<const protocol::Manifest> manifest;  // the newest version
    std::string fingerprint;
};

std::string fingerprint_of(const protocol::Manifest& manifest);

// Any thread.
class PeerDatasets {
public:
    void set(std::vector<PeerDataset> datasets);
    std::vector<PeerDataset> all() const;
    std::optional<PeerDataset> find(std::string_view name, std::string_view fingerprint) const;

private:
    mutable std::mutex mutex_;
    std::vector<PeerDataset> datasets_;
};

}  // namespace larder::cache
