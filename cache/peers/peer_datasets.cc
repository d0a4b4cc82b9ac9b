#include "cache/peers/peer_datasets.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace larder::cache {

// The CRC covers all but the header, which says when and by whom the manifest was made. The sizes make a chance
// collision less likely.
std::string fingerprint_of(const protocol::Manifest& manifest) {
    const protocol::ManifestHeader& header = manifest.header();
    char text[64];
    std::snprintf(text, sizeof text, "%08x-%llx-%llx", header.body_crc,
                  static_cast<unsigned long long>(header.file_bytes),
                  static_cast<unsigned long long>(header.total_bytes));
    return text;
}

void PeerDatasets::set(std::vector<PeerDataset> datasets) {
    const std::lock_guard lock(mutex_);
    datasets_ = std::move(datasets);
}

std::vector<PeerDataset> PeerDatasets::all() const {
    const std::lock_guard lock(mutex_);
    return datasets_;
}

std::optional<PeerDataset> PeerDatasets::find(std::string_view name, std::string_view fingerprint) const {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(datasets_, [&](const PeerDataset& dataset) {
        return dataset.name == name && dataset.fingerprint == fingerprint;
    });
    return found == datasets_.end() ? std::nullopt : std::optional(*found);
}

}  // namespace larder::cache
