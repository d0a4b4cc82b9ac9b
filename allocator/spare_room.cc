#include "allocator/spare_room.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace larder::allocator {
namespace {

struct Share {
    std::uint32_t dataset = 0;
    std::uint64_t wanted_bytes = 0;
    NodeCache given;
};

// Deals `room` in equal parts, none above its wanted bytes. The smallest come first, so that the room they leave goes
// to the others.
void deal(std::uint64_t room, std::vector<Share>& shares, std::uint64_t NodeCache::* tier) {
    for (std::size_t i = 0; i < shares.size(); ++i) {
        const std::uint64_t part = std::min(room / (shares.size() - i), shares[i].wanted_bytes);
        shares[i].given.*tier += part;
        shares[i].wanted_bytes -= part;
        room -= part;
    }
}

NodeCache& quota_on(std::vector<NodeCache>& quotas, std::uint32_t node) {
    const auto found = std::ranges::lower_bound(quotas, node, {}, &NodeCache::node);
    return found != quotas.end() && found->node == node ? *found : *quotas.insert(found, {.node = node});
}

}  // namespace

ClusterState without_spare_room(const ClusterState& state) {
    ClusterState trimmed = state;
    std::vector<bool> is_read(state.datasets.size());
    for (const ClusterJob& job : state.jobs) {
        if (!job.placement.empty() || job.waits_for_turn()) is_read[job.dataset] = true;
    }
    for (std::size_t i = 0; i < trimmed.datasets.size(); ++i) {
        if (is_read[i]) continue;
        ClusterDataset& dataset = trimmed.datasets[i];
        for (NodeCache& quota : dataset.quotas) {
            if (dataset.is_held_on(quota.node)) continue;
            const auto found = std::ranges::find(dataset.cached, quota.node, &NodeCache::node);
            const NodeCache cached = found == dataset.cached.end() ? NodeCache{} : *found;
            quota.memory_bytes = std::min(quota.memory_bytes, cached.memory_bytes);
            quota.disk_bytes = std::min(quota.disk_bytes, cached.disk_bytes);
        }
    }
    return trimmed;
}

void give_spare_room(const ClusterState& state, Plan& plan) {
    std::vector<NodeCache> room(state.nodes.size());
    for (std::size_t n = 0; n < room.size(); ++n) {
        room[n].memory_bytes = state.nodes[n].memory_bytes;
        room[n].disk_bytes = state.nodes[n].disk_bytes;
    }
    // Bytes that each peer group already has of a dataset: more than the dataset's size is useless there.
    std::vector<std::vector<std::pair<std::uint32_t, std::uint64_t>>> bytes_in_groups(state.datasets.size());
    const auto bytes_in_group = [&](std::uint32_t dataset, std::uint32_t group) -> std::uint64_t& {
        const auto found =
            std::ranges::find(bytes_in_groups[dataset], group, [](const auto& entry) { return entry.first; });
        return found != bytes_in_groups[dataset].end() ? found->second
                                                       : bytes_in_groups[dataset].emplace_back(group, 0).second;
    };
    for (std::uint32_t i = 0; i < plan.datasets.size(); ++i) {
        for (const NodeCache& quota : plan.datasets[i].quotas) {
            room[quota.node].memory_bytes -= quota.memory_bytes;
            room[quota.node].disk_bytes -= quota.disk_bytes;
            bytes_in_group(i, state.nodes[quota.node].peer_group) += quota.bytes();
        }
    }
    std::vector<bool> is_read(state.datasets.size());
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        if (plan.jobs[j].running || state.jobs[j].waits_for_turn()) is_read[state.jobs[j].dataset] = true;
    }
    std::vector<std::vector<std::uint32_t>> idle(state.nodes.size());
    for (std::uint32_t i = 0; i < state.datasets.size(); ++i) {
        if (is_read[i]) continue;
        for (const NodeCache& quota : state.datasets[i].quotas) {
            if (!state.datasets[i].is_held_on(quota.node)) idle[quota.node].push_back(i);
        }
    }
    std::vector<Share> shares;
    for (std::uint32_t node = 0; node < room.size(); ++node) {
        if (idle[node].empty() || room[node].bytes() == 0) continue;
        const std::uint32_t group = state.nodes[node].peer_group;
        shares.clear();
        for (const std::uint32_t i : idle[node]) {
            // A group needs a dataset only once. The operator's cap holds for all groups together.
            const ClusterDataset& dataset = state.datasets[i];
            const std::uint64_t size_left = dataset.size_bytes - std::min(dataset.size_bytes, bytes_in_group(i, group));
            const std::uint64_t planned_bytes = plan.datasets[i].quota_bytes;
            const std::uint64_t cap_left = dataset.quota_cap_bytes - std::min(dataset.quota_cap_bytes, planned_bytes);
            const std::uint64_t wanted_bytes = std::min(size_left, cap_left);
            if (wanted_bytes > 0) {
                shares.push_back({.dataset = i, .wanted_bytes = wanted_bytes, .given = {.node = node}});
            }
        }
        const auto smallest_first = [&](const Share& a, const Share& b) {
            return a.wanted_bytes != b.wanted_bytes ? a.wanted_bytes < b.wanted_bytes
                                                    : state.datasets[a.dataset].name < state.datasets[b.dataset].name;
        };
        std::ranges::sort(shares, smallest_first);
        deal(room[node].memory_bytes, shares, &NodeCache::memory_bytes);
        std::ranges::sort(shares, smallest_first);
        deal(room[node].disk_bytes, shares, &NodeCache::disk_bytes);
        for (const Share& share : shares) {
            if (share.given.bytes() == 0) continue;
            NodeCache& quota = quota_on(plan.datasets[share.dataset].quotas, node);
            quota.memory_bytes += share.given.memory_bytes;
            quota.disk_bytes += share.given.disk_bytes;
            plan.datasets[share.dataset].quota_bytes += share.given.bytes();
            bytes_in_group(share.dataset, group) += share.given.bytes();
        }
    }
}

}  // namespace larder::allocator
