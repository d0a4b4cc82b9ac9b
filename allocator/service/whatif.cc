#include "allocator/service/whatif.h"

#include <algorithm>

#include "base/units.h"

namespace larder::allocator {
namespace {

double capacity_of(const ClusterState& state) {
    double bytes = 0;
    for (const ClusterNode& node : state.nodes) {
        bytes += static_cast<double>(node.memory_bytes) + static_cast<double>(node.disk_bytes);
    }
    return bytes;
}

std::uint64_t scaled(std::uint64_t bytes, double factor) {
    return static_cast<std::uint64_t>(static_cast<double>(bytes) * factor);
}

// Drops cached bytes that no longer fit a node's tier, in equal proportion from all datasets, and lowers the jobs'
// cached unread bytes.
void drop_bytes_that_do_not_fit(ClusterState& state) {
    std::vector<NodeCache> used(state.nodes.size());
    for (const ClusterDataset& dataset : state.datasets) {
        for (const NodeCache& cached : dataset.cached) {
            used[cached.node].memory_bytes += cached.memory_bytes;
            used[cached.node].disk_bytes += cached.disk_bytes;
        }
    }
    const auto fitting_fraction = [](std::uint64_t room, std::uint64_t wanted) {
        return wanted <= room ? 1 : static_cast<double>(room) / static_cast<double>(wanted);
    };
    std::vector<double> kept_fraction(state.datasets.size(), 1);
    for (std::size_t i = 0; i < state.datasets.size(); ++i) {
        double before = 0;
        double after = 0;
        for (NodeCache& cached : state.datasets[i].cached) {
            const ClusterNode& node = state.nodes[cached.node];
            before += static_cast<double>(cached.bytes());
            cached.memory_bytes =
                scaled(cached.memory_bytes, fitting_fraction(node.memory_bytes, used[cached.node].memory_bytes));
            cached.disk_bytes =
                scaled(cached.disk_bytes, fitting_fraction(node.disk_bytes, used[cached.node].disk_bytes));
            after += static_cast<double>(cached.bytes());
        }
        if (before > 0) kept_fraction[i] = after / before;
    }
    for (ClusterJob& job : state.jobs)
        job.unread_cached_bytes = scaled(job.unread_cached_bytes, kept_fraction[job.dataset]);
}

Result<void> change_cache(ClusterState& state, std::int64_t change_bytes) {
    if (change_bytes == 0) return {};
    const double capacity = capacity_of(state);
    const auto change = static_cast<double>(change_bytes);
    if (state.nodes.empty())
        return fail(ErrorCode::invalid_argument, "cache_bytes: no node reports, so no cache can change");
    if (capacity + change < 0) {
        return fail(ErrorCode::invalid_argument,
                    "cache_bytes: removes more than the nodes' " + format_bytes(static_cast<std::uint64_t>(capacity)));
    }
    for (ClusterNode& node : state.nodes) {
        if (capacity > 0) {
            node.memory_bytes = scaled(node.memory_bytes, 1 + change / capacity);
            node.disk_bytes = scaled(node.disk_bytes, 1 + change / capacity);
        } else {
            node.disk_bytes = static_cast<std::uint64_t>(change / static_cast<double>(state.nodes.size()));
        }
    }
    if (change_bytes < 0) drop_bytes_that_do_not_fit(state);
    return {};
}

Result<void> pin(ClusterState& state, const AddedPin& pin) {
    const auto found = std::ranges::find(state.datasets, pin.dataset, &ClusterDataset::name);
    if (found == state.datasets.end()) {
        return fail(ErrorCode::not_found, "pins: no node has a dataset \"" + pin.dataset + "\"");
    }
    found->quota_floor_bytes = pin.bytes;
    found->quota_cap_bytes = pin.bytes;
    return {};
}

Result<void> remove_job(ClusterState& state, const std::string& name) {
    const auto found = std::ranges::find(state.jobs, name, &ClusterJob::name);
    if (found == state.jobs.end()) return fail(ErrorCode::not_found, "remove_jobs: no job \"" + name + "\" runs");
    state.jobs.erase(found);
    return {};
}

Result<std::uint32_t> dataset_of(ClusterState& state, const AddedJob& added, const std::string& at) {
    const auto found = std::ranges::find(state.datasets, added.dataset, &ClusterDataset::name);
    if (found != state.datasets.end()) return static_cast<std::uint32_t>(found - state.datasets.begin());
    if (!added.dataset_size_bytes) {
        return fail(ErrorCode::not_found, at + ".dataset: no node has a dataset \"" + added.dataset +
                                              "\"; for a new dataset, give dataset_size_bytes");
    }
    state.datasets.push_back({.name = added.dataset, .size_bytes = *added.dataset_size_bytes});
    return static_cast<std::uint32_t>(state.datasets.size() - 1);
}

Result<GpuShares> requested_placement(const ClusterState& state, const AddedJob& added, const std::string& at) {
    GpuShares shares;
    for (const std::string& name : added.nodes) {
        const auto found = std::ranges::find(state.nodes, name, &ClusterNode::name);
        if (found == state.nodes.end())
            return fail(ErrorCode::not_found, at + ".nodes: no node \"" + name + "\" reports");
        shares.push_back({.node = static_cast<std::uint32_t>(found - state.nodes.begin())});
    }
    if (added.nodes.empty() && added.gpus == 0) {
        for (std::uint32_t n = 0; n < state.nodes.size(); ++n) shares.push_back({.node = n});
    }
    const auto count = static_cast<std::uint32_t>(shares.size());
    for (std::uint32_t i = 0; i < count; ++i) shares[i].gpus = added.gpus / count + (i < added.gpus % count ? 1 : 0);
    return shares;
}

Result<void> add_job(ClusterState& state, const AddedJob& added, const std::string& at) {
    const JobRegistration& spec = added.spec;
    if (std::ranges::find(state.jobs, spec.name, &ClusterJob::name) != state.jobs.end()) {
        return fail(ErrorCode::already_exists, at + ".name: a job \"" + spec.name + "\" already runs");
    }
    const auto dataset = dataset_of(state, added, at);
    if (!dataset) return std::unexpected(dataset.error());
    auto placement = requested_placement(state, added, at);
    if (!placement) return std::unexpected(placement.error());
    state.jobs.push_back(
        {.name = spec.name,
         .user = spec.user,
         .dataset = *dataset,
         .gpus = added.gpus,
         // Without a declared f*, a new job may turn out to need the whole remote.
         .ideal_bytes_per_second = spec.ideal_bytes_per_second.value_or(std::max(1.0, state.remote_bytes_per_second)),
         .weight = spec.weight,
         .remaining_epochs = spec.epochs,
         .placement = std::move(*placement),
         .bandwidth_floor_bytes_per_second = spec.bandwidth_floor_bytes_per_second,
         .bandwidth_cap_bytes_per_second = spec.bandwidth_cap_bytes_per_second});
    return {};
}

Result<void> apply(ClusterState& state, const WhatIfChange& change) {
    if (change.remote_bytes_per_second) state.remote_bytes_per_second = *change.remote_bytes_per_second;
    if (auto changed = change_cache(state, change.cache_bytes); !changed) return changed;
    for (const AddedPin& added : change.pins) {
        if (auto pinned = pin(state, added); !pinned) return pinned;
    }
    for (const std::string& name : change.remove_jobs) {
        if (auto removed = remove_job(state, name); !removed) return removed;
    }
    for (std::size_t i = 0; i < change.add_jobs.size(); ++i) {
        if (auto added = add_job(state, change.add_jobs[i], "add_jobs[" + std::to_string(i) + "]"); !added)
            return added;
    }
    return {};
}

}  // namespace

Result<Comparison> what_if(const ClusterState& state, const Objective& objective, const WhatIfChange& change) {
    Comparison comparison{.before = {.state = state, .objective = objective, .plan = {}},
                          .after = {.state = state, .objective = objective, .plan = {}}};
    WhatIfOutcome& after = comparison.after;
    if (auto applied = apply(after.state, change); !applied) return std::unexpected(applied.error());
    if (change.objective) after.objective.kind = *change.objective;
    after.objective.place_jobs = true;
    for (WhatIfOutcome* outcome : {&comparison.before, &comparison.after}) {
        auto plan = assign(outcome->state, outcome->objective);
        if (!plan)
            return std::unexpected(plan.error().within(outcome == &after ? "the changed cluster" : "the cluster"));
        outcome->plan = std::move(*plan);
    }
    return comparison;
}

}  // namespace larder::allocator
