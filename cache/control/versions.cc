#include "cache/control/versions.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "base/file.h"
#include "base/server/logging.h"

namespace larder::cache {
namespace asio = boost::asio;

Result<std::shared_ptr<const DatasetVersion>> open_version(const std::string& manifest_path) {
    auto fd = open_file(manifest_path, O_RDONLY);
    if (!fd) return std::unexpected(fd.error());
    auto manifest = protocol::Manifest::open(fd->get());
    if (!manifest) return std::unexpected(manifest.error().within(manifest_path));
    if (auto checked = manifest->check(); !checked) return std::unexpected(checked.error().within(manifest_path));
    auto version = std::make_shared<DatasetVersion>();
    version->manifest = std::make_shared<const protocol::Manifest>(std::move(*manifest));
    version->manifest_fd = std::move(*fd);
    return version;
}

std::optional<Error> open_versions(NodeDataset& dataset, const Catalog& catalog) {
    const std::string& name = dataset.record.definition.name;
    std::optional<Error> damage;
    for (const std::uint64_t version : dataset.record.versions) {
        const std::string path = catalog.manifest_path(name, version);
        auto opened = open_version(path);
        const bool matches_record =
            opened && (*opened)->dataset_id() == dataset.record.dataset_id && (*opened)->version() == version;
        if (matches_record) {
            dataset.versions.emplace(version, std::move(*opened));
            continue;
        }
        damage =
            opened ? Error{ErrorCode::corrupt, path + " is not the manifest that dataset.json names"} : opened.error();
        log_error("a dataset's manifest cannot be used",
                  {{"dataset", name}, {"version", version}, {"reason", damage->message}});
    }
    if (!damage) return std::nullopt;
    dataset.record.versions.clear();
    for (const auto& [version, opened] : dataset.versions) dataset.record.versions.push_back(version);
    return dataset.versions.empty() ? damage : std::nullopt;
}

void OldVersions::drop(const ShardStatistics& statistics) {
    const std::int64_t now_ns = clock_.now_ns();
    for (const DatasetStatistics& counted : statistics.datasets) {
        const auto found = datasets_.all().find(counted.name);
        if (found == datasets_.all().end() || found->second.record.dataset_id != counted.dataset_id) continue;
        NodeDataset& dataset = found->second;
        std::vector<std::uint64_t> needed;
        for (const auto& [version, opened] : dataset.versions) {
            const bool used = std::ranges::find(counted.versions_in_use, version) != counted.versions_in_use.end();
            std::int64_t& needed_ns = dataset.needed_ns.try_emplace(version, now_ns).first->second;
            if (used || version == dataset.newest().version()) needed_ns = now_ns;
            if (now_ns - needed_ns <= grace_ns_) needed.push_back(version);
        }
        if (needed != dataset.versions_cached) keep_blocks(dataset, needed);
        drop_manifests(dataset, needed);
    }
}

// Removes the manifests of unneeded versions, except the newest kVersionsKept: the next indexing starts from one of
// these.
void OldVersions::drop_manifests(NodeDataset& dataset, const std::vector<std::uint64_t>& needed) {
    bool changed = false;
    while (dataset.versions.size() > kVersionsKept) {
        const auto first_kept = std::prev(dataset.versions.end(), kVersionsKept);
        const auto dropped = std::ranges::find_if(
            dataset.versions, [&](const auto& item) { return std::ranges::find(needed, item.first) == needed.end(); });
        if (dropped == dataset.versions.end() || dropped->first >= first_kept->first) break;
        const std::uint64_t version = dropped->first;
        std::erase(dataset.record.versions, version);
        dataset.needed_ns.erase(version);
        dataset.versions.erase(dropped);
        changed = true;
        files_.post([this, name = dataset.record.definition.name, version] {
            if (auto removed = datasets_.catalog().remove_manifest(name, version); !removed) {
                log_warn("cannot remove an old manifest", {{"error", removed.error().message}});
            }
        });
    }
    if (changed) datasets_.save(dataset.record, nullptr);
}

// Keeps only the blocks of the needed versions, so that blocks of other versions do not take up room for ever.
void OldVersions::keep_blocks(NodeDataset& dataset, const std::vector<std::uint64_t>& needed) {
    const bool first = dataset.versions_cached.empty();
    dataset.versions_cached = needed;
    const protocol::Manifest& newest = *dataset.newest().manifest;
    if (first && dataset.versions.size() == 1 && newest.header().block_id_end == newest.block_count()) return;
    std::vector<std::shared_ptr<const protocol::Manifest>> manifests;
    manifests.reserve(needed.size());
    for (const std::uint64_t version : needed) manifests.push_back(dataset.versions.at(version)->manifest);
    files_.post([this, manifests, id = dataset.record.dataset_id] {
        std::uint64_t block_id_end = 0;
        for (const auto& manifest : manifests) block_id_end = std::max(block_id_end, manifest->header().block_id_end);
        auto live = std::make_shared<std::vector<std::uint64_t>>((block_id_end + 63) / 64);
        for (const auto& manifest : manifests) {
            for (std::uint32_t block = 0; block < manifest->block_count(); ++block) {
                const std::uint32_t block_id = manifest->block_id(block);
                (*live)[block_id / 64] |= std::uint64_t{1} << (block_id % 64);
            }
        }
        // Unused bits of the last word belong to ids of future versions: mark them live.
        if (block_id_end % 64 != 0) live->back() |= ~std::uint64_t{0} << (block_id_end % 64);
        // The control thread knows if the dataset, and the shard, are still there.
        asio::post(control_, [this, id, live] {
            const NodeDataset* still = datasets_.find(id);
            if (still == nullptr) return;
            still->shard->post([id, live](Shard& shard) { shard.drop_dead_blocks(id, *live); });
        });
    });
}

}  // namespace larder::cache
