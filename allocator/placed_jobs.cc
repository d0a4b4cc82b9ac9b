// Jobs that another scheduler starts, such as Slurm: the cache that they reserve before they start, and where they run.

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/cluster.h"
#include "base/nearest_name.h"
#include "base/units.h"

namespace larder::allocator {

Result<std::size_t> Cluster::find_dataset(const ClusterState& state, const std::string& name) const {
    const auto found = std::ranges::find(state.datasets, name, &ClusterDataset::name);
    if (found != state.datasets.end()) return static_cast<std::size_t>(found - state.datasets.begin());
    std::vector<std::string> names;
    names.reserve(state.datasets.size());
    for (const ClusterDataset& other : state.datasets) names.push_back(other.name);
    const auto nearest = nearest_name(name, names);
    return fail(ErrorCode::not_found,
                "no node has a dataset \"" + name + "\"" +
                    (nearest ? "; did you mean \"" + *nearest + "\"?" : ": `larder dataset ls` lists the datasets"));
}

Result<void> Cluster::check_reservation(const JobRegistration& spec, std::int64_t now_ns) const {
    if (spec.dataset.empty()) {
        if (spec.cache_bytes == 0) return {};
        return fail(ErrorCode::invalid_argument, "cache_bytes: needs a dataset");
    }
    const ClusterState known = state(now_ns);
    const auto at = find_dataset(known, spec.dataset);
    if (!at) return std::unexpected(at.error());
    if (spec.cache_bytes == 0) return {};
    const ClusterDataset& dataset = known.datasets[*at];
    const Room room = room_for_pin(known, dataset);
    const double wanted = pinned_bytes(known, dataset, spec.cache_bytes);
    const auto pin = pins_.find(spec.dataset);
    const double free =
        pin == pins_.end() ? room.free() : std::min(room.free(), pinned_bytes(known, dataset, pin->second));
    if (wanted <= free) return {};
    const auto text = [](double bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); };
    return fail(ErrorCode::no_space, "job \"" + spec.name + "\" cannot reserve " + text(wanted) +
                                         " of cache for dataset \"" + spec.dataset + "\": " + text(free) +
                                         " is free now");
}

Result<void> Cluster::reserve_for_job(const std::string& name, std::uint64_t cache_bytes,
                                      double bandwidth_floor_bytes_per_second, std::int64_t now_ns,
                                      std::vector<std::string> expected_on) {
    const auto found = jobs_.find(name);
    if (found == jobs_.end() || !found->second.spec) {
        return fail(ErrorCode::not_found, "job \"" + name + "\" is not registered");
    }
    JobRegistration changed = *found->second.spec;
    const double floor_before = changed.bandwidth_floor_bytes_per_second;
    std::ranges::sort(expected_on);
    expected_on.erase(std::ranges::unique(expected_on).begin(), expected_on.end());
    const bool is_reserved = changed.cache_bytes == cache_bytes && floor_before == bandwidth_floor_bytes_per_second;
    if (is_reserved && changed.expected_on == expected_on) return {};
    changed.cache_bytes = cache_bytes;
    changed.bandwidth_floor_bytes_per_second = bandwidth_floor_bytes_per_second;
    changed.expected_on = std::move(expected_on);
    // The job has these bytes already, even if nodes have gone since.
    if (!is_reserved) {
        if (auto good = check_bandwidths(changed, floors_bytes_per_second_ - floor_before); !good) return good;
        if (auto free = check_reservation(changed, now_ns); !free) {
            // The dataset was known when the job was registered, so its nodes may come back.
            if (free.error().code != ErrorCode::not_found) return free;
            return fail(ErrorCode::unavailable, free.error().message);
        }
    }
    if (auto saved = save({.jobs = {{name, changed}}}); !saved) return saved;
    set_spec(found->second, std::move(changed));
    return {};
}

Result<void> Cluster::place_job(const std::string& name, const std::string& node, std::optional<std::uint32_t> gpus) {
    const auto found = jobs_.find(name);
    if (found == jobs_.end() || !found->second.spec) {
        return fail(ErrorCode::not_found, "job \"" + name + "\" is not registered");
    }
    JobRegistration changed = *found->second.spec;
    if (gpus) {
        changed.runs_on[node] = *gpus;
    } else {
        changed.runs_on.erase(node);
    }
    if (changed.runs_on == found->second.spec->runs_on) return {};
    if (auto saved = save({.jobs = {{name, changed}}}); !saved) return saved;
    change_job(found->second, [&] { found->second.spec->runs_on = std::move(changed.runs_on); });
    return {};
}

bool Cluster::waits_for_cache(const KnownJob& job) {
    return job.spec && job.spec->cache_bytes > 0 && job.spec->runs_on.empty() && job.last_counters.empty();
}

void Cluster::count_needs(const KnownJob& job, bool add) {
    if (!job.spec || job.spec->dataset.empty()) return;
    const JobRegistration& spec = *job.spec;
    if (!spec.runs_on.empty()) {
        if (add) {
            placed_.insert(spec.name);
        } else {
            placed_.erase(spec.name);
        }
    }
    if (spec.cache_bytes == 0) return;
    DatasetNeeds& needs = dataset_needs_[spec.dataset];
    if (add) {
        needs.reserved_bytes.insert(spec.cache_bytes);
        if (!waits_for_cache(job)) return;
        needs.waiting_bytes.insert(spec.cache_bytes);
        for (const std::string& node : spec.expected_on) ++needs.expected[node];
        return;
    }
    needs.reserved_bytes.erase(needs.reserved_bytes.find(spec.cache_bytes));
    if (waits_for_cache(job)) {
        needs.waiting_bytes.erase(needs.waiting_bytes.find(spec.cache_bytes));
        for (const std::string& node : spec.expected_on) {
            const auto count = needs.expected.find(node);
            if (--count->second == 0) needs.expected.erase(count);
        }
    }
    if (needs.reserved_bytes.empty()) dataset_needs_.erase(spec.dataset);
}

std::uint64_t Cluster::reserved_bytes(const std::string& dataset) const {
    const auto needs = dataset_needs_.find(dataset);
    return needs == dataset_needs_.end() ? 0 : *needs->second.reserved_bytes.rbegin();
}

bool Cluster::is_to_be_warmed(const ClusterDataset& dataset) const {
    const auto needs = dataset_needs_.find(dataset.name);
    if (needs == dataset_needs_.end() || needs->second.waiting_bytes.empty()) return false;
    std::uint64_t cached_bytes = 0;
    for (const NodeCache& cached : dataset.cached) cached_bytes += cached.bytes();
    return cached_bytes < std::min(*needs->second.waiting_bytes.rbegin(), dataset.size_bytes);
}

// Relies on state() listing nodes, and each dataset's quotas, by the nodes' names.
std::vector<std::uint32_t> Cluster::expected_nodes(const ClusterState& state, const ClusterDataset& dataset) const {
    std::vector<std::uint32_t> nodes;
    const auto needs = dataset_needs_.find(dataset.name);
    if (needs == dataset_needs_.end()) return nodes;
    for (const auto& [name, count] : needs->second.expected) {
        const auto node = std::ranges::lower_bound(state.nodes, name, {}, &ClusterNode::name);
        if (node == state.nodes.end() || node->name != name) continue;
        const auto index = static_cast<std::uint32_t>(node - state.nodes.begin());
        if (std::ranges::binary_search(dataset.quotas, index, {}, &NodeCache::node)) nodes.push_back(index);
    }
    return nodes;
}

bool Cluster::is_filled(std::uint32_t dataset, const NodeCache& quota) const {
    const auto node = nodes_.find(planned_state_.nodes[quota.node].name);
    if (quota.bytes() == 0 || node == nodes_.end()) return true;
    const NodeReport& report = node->second.last;
    const std::string& name = planned_state_.datasets[dataset].name;
    const auto applied = std::ranges::find(report.datasets, name, &DatasetReport::name);
    const bool has_quota =
        applied != report.datasets.end() && applied->quota_memory_bytes + applied->quota_disk_bytes >= quota.bytes();
    return has_quota && std::ranges::find(report.warmed, name) != report.warmed.end();
}

bool Cluster::is_to_be_warmed_on(std::uint32_t dataset, std::uint32_t node) const {
    const ClusterDataset& known = planned_state_.datasets[dataset];
    if (!is_to_be_warmed(known)) return false;
    if (known.expected_on.empty() || std::ranges::binary_search(known.expected_on, node)) return true;
    const std::vector<NodeCache>& quotas = plan_.datasets[dataset].quotas;
    return std::ranges::all_of(known.expected_on, [&](std::uint32_t expected) {
        const auto quota = std::ranges::lower_bound(quotas, expected, {}, &NodeCache::node);
        return quota == quotas.end() || quota->node != expected || is_filled(dataset, *quota);
    });
}

// A quota seldom holds a whole number of blocks. So a dataset also counts as staged once each node with a part of its
// quota says that no further block fits.
bool Cluster::is_staged(const JobRegistration& job) const {
    if (job.cache_bytes == 0) return true;
    for (std::uint32_t i = 0; i < planned_state_.datasets.size(); ++i) {
        const ClusterDataset& dataset = planned_state_.datasets[i];
        if (dataset.name != job.dataset) continue;
        std::uint64_t cached_bytes = 0;
        for (const NodeCache& cached : dataset.cached) cached_bytes += cached.bytes();
        const std::uint64_t wanted_bytes = std::min(job.cache_bytes, dataset.size_bytes);
        if (cached_bytes >= wanted_bytes) return true;
        if (dataset.quota_floor_bytes < wanted_bytes) return false;  // the plan does not have the reservation yet
        return std::ranges::all_of(plan_.datasets[i].quotas,
                                   [&](const NodeCache& quota) { return is_filled(i, quota); });
    }
    return false;
}

void Cluster::declare(ClusterJob& job, const KnownJob& known) {
    job.user = known.user;
    if (!known.spec) return;
    const JobRegistration& spec = *known.spec;
    job.is_admitted = spec.registered_by_operator();
    job.weight = spec.weight;
    job.remaining_epochs = remaining_epochs(known);
    job.bandwidth_floor_bytes_per_second = spec.bandwidth_floor_bytes_per_second;
    job.bandwidth_cap_bytes_per_second = spec.bandwidth_cap_bytes_per_second;
}

// Adds the jobs that other schedulers run and that no node reports yet. GPUs that a scheduler has given a job count
// instead of the loaders that a node reports.
void Cluster::add_placed_jobs(ClusterState& state, std::int64_t now_ns) const {
    bool any = false;
    for (const std::string& name : placed_) {
        const KnownJob& known = jobs_.at(name);
        const auto dataset = std::ranges::find(state.datasets, known.spec->dataset, &ClusterDataset::name);
        auto job = std::ranges::find(state.jobs, name, &ClusterJob::name);
        if (job == state.jobs.end() && dataset == state.datasets.end()) continue;
        ClusterJob added{.name = name,
                         .ideal_bytes_per_second = ideal_of(&known),
                         .ideal_is_measured = known.ideal.bytes_per_second().has_value(),
                         .ideal_is_guess = ideal_is_guess(known, now_ns)};
        ClusterJob& placed = job == state.jobs.end() ? added : *job;
        for (const auto& [node_name, gpus] : known.spec->runs_on) {
            const auto node = std::ranges::find(state.nodes, node_name, &ClusterNode::name);
            if (node == state.nodes.end()) continue;
            const auto index = static_cast<std::uint32_t>(node - state.nodes.begin());
            const auto share = std::ranges::find(placed.placement, index, &GpuShare::node);
            if (share == placed.placement.end()) {
                placed.placement.push_back({index, gpus});
            } else {
                share->gpus = gpus;
            }
        }
        placed.gpus = 0;
        for (const GpuShare& share : placed.placement) placed.gpus += share.gpus;
        if (job == state.jobs.end() && !added.placement.empty()) {
            declare(added, known);
            added.dataset = static_cast<std::uint32_t>(dataset - state.datasets.begin());
            state.jobs.push_back(std::move(added));
        }
        any = true;
    }
    if (!any) return;
    // A node may have more jobs than it says it has GPUs.
    std::vector<std::uint32_t> used(state.nodes.size());
    for (const ClusterJob& job : state.jobs) {
        for (const GpuShare& share : job.placement) used[share.node] += share.gpus;
    }
    for (std::size_t n = 0; n < used.size(); ++n) state.nodes[n].gpus = std::max(state.nodes[n].gpus, used[n]);
}

}  // namespace larder::allocator
