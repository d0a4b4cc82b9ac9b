#include "allocator/problem.h"

#include <boost/unordered/unordered_flat_map.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <ranges>
#include <span>
#include <utility>

#include "allocator/model.h"
#include "allocator/sort_few.h"
#include "allocator/sorted_indices.h"
#include "base/hash.h"

namespace larder::allocator {
namespace {

// Returns the indices of `things` in an order that is quick to make: by hash of the name, then by name.
std::vector<std::uint32_t> in_order(const auto& things) {
    std::vector<std::uint64_t> hashes(things.size());
    for (std::size_t i = 0; i < hashes.size(); ++i) hashes[i] = hash_name(things[i].name);
    std::vector<std::uint32_t> order = ascending(hashes);
    sort_equal(
        std::span(order), [&](std::uint32_t index) { return hashes[index]; },
        [&](std::uint32_t a, std::uint32_t b) { return things[a].name < things[b].name; });
    return order;
}

bool counts(const ClusterJob& job, CountedJobs counted) {
    return !job.placement.empty() || (counted == CountedJobs::by_time_share && job.waits_for_turn());
}

// Returns where a job runs, or where it ran last.
const GpuShares& place_of(const ClusterJob& job) {
    return job.placement.empty() ? job.last_placement : job.placement;
}

// Returns the jobs that count, dataset by dataset, and within a dataset slowest first.
std::vector<std::uint32_t> jobs_that_count(const ClusterState& state, CountedJobs counted,
                                           std::span<const std::uint32_t> datasets_in_order,
                                           std::span<DatasetTerms> terms) {
    struct UnsortedJob {
        std::uint32_t job;
        std::uint32_t dataset;
        double ideal;
    };
    struct SortedJob {
        double ideal;
        std::uint32_t job;
    };
    std::vector<UnsortedJob> unsorted;
    unsorted.reserve(state.jobs.size());
    std::vector<std::uint32_t> count(state.datasets.size());
    for (std::uint32_t i = 0; i < state.jobs.size(); ++i) {
        const ClusterJob& job = state.jobs[i];
        if (!counts(job, counted)) continue;
        unsorted.push_back({.job = i, .dataset = job.dataset, .ideal = job.ideal_bytes_per_second});
        ++count[job.dataset];
    }
    std::vector<std::uint32_t> end(state.datasets.size());
    std::uint32_t next = 0;
    for (const std::uint32_t dataset : datasets_in_order) {
        end[dataset] = next;
        terms[dataset].jobs_begin = next;
        next += count[dataset];
        terms[dataset].jobs_end = next;
    }
    std::vector<SortedJob> sorted(next);
    const auto ideal_of = [](const SortedJob& job) { return job.ideal; };
    for (const UnsortedJob& job : unsorted) sorted[end[job.dataset]++] = {.ideal = job.ideal, .job = job.job};
    for (const std::uint32_t dataset : datasets_in_order) {
        const auto dataset_jobs = std::span(sorted).subspan(end[dataset] - count[dataset], count[dataset]);
        sort_few(dataset_jobs, ideal_of);
        sort_equal(dataset_jobs, ideal_of, [&](const SortedJob& a, const SortedJob& b) {
            return state.jobs[a.job].name < state.jobs[b.job].name;
        });
    }
    std::vector<std::uint32_t> indices;
    indices.reserve(sorted.size());
    for (const SortedJob& job : sorted) indices.push_back(job.job);
    return indices;
}

double cache_bytes(const ClusterNode& node) {
    return static_cast<double>(node.memory_bytes) + static_cast<double>(node.disk_bytes);
}

// Numbers the peer groups in the order of their first nodes, and adds up their cache.
void find_groups(const ClusterState& state, Problem& problem) {
    problem.group_of_node.resize(state.nodes.size());
    boost::unordered_flat_map<std::uint32_t, std::uint32_t> numbers;
    for (const std::uint32_t n : problem.nodes_in_order) {
        const ClusterNode& node = state.nodes[n];
        const auto number = static_cast<std::uint32_t>(problem.group_bytes.size());
        const auto [found, added] = numbers.emplace(node.peer_group, number);
        if (added) problem.group_bytes.push_back(0);
        problem.group_of_node[n] = found->second;
        problem.group_bytes[found->second] += cache_bytes(node);
    }
}

// Makes a GroupCache for each dataset in each group where cache of it lies, may lie, or is wanted.
void find_caches(const ClusterState& state, std::span<const std::uint32_t> datasets_in_order, Problem& problem) {
    const auto groups = static_cast<std::uint32_t>(problem.group_bytes.size());
    std::vector<std::vector<std::uint32_t>> wanted(groups == 1 ? 0 : state.datasets.size());  // groups, by dataset
    for (const ClusterJob& job : state.jobs) {
        if (wanted.empty()) break;
        for (const GpuShare& share : place_of(job)) wanted[job.dataset].push_back(problem.group_of_node[share.node]);
    }
    std::vector<std::uint32_t> dataset_groups;
    for (const std::uint32_t i : datasets_in_order) {
        const ClusterDataset& dataset = state.datasets[i];
        DatasetTerms& terms = problem.datasets[i];
        dataset_groups.clear();
        if (groups == 1) {
            dataset_groups.push_back(0);
        } else {
            for (const NodeCache& quota : dataset.quotas) dataset_groups.push_back(problem.group_of_node[quota.node]);
            for (const NodeCache& cached : dataset.cached) dataset_groups.push_back(problem.group_of_node[cached.node]);
            for (const NodeCache& held : dataset.held) dataset_groups.push_back(problem.group_of_node[held.node]);
            dataset_groups.insert(dataset_groups.end(), wanted[i].begin(), wanted[i].end());
            std::ranges::sort(dataset_groups);
            dataset_groups.erase(std::ranges::unique(dataset_groups).begin(), dataset_groups.end());
        }
        terms.caches_begin = static_cast<std::uint32_t>(problem.caches.size());
        for (const std::uint32_t group : dataset_groups) {
            const auto size = static_cast<double>(dataset.size_bytes);
            problem.caches.push_back({.dataset = i, .group = group, .size = size, .cap = size});
        }
        terms.caches_end = static_cast<std::uint32_t>(problem.caches.size());
        for (const NodeCache& cached : dataset.cached) {
            problem.caches[problem.cache_on(i, cached.node)].cached += static_cast<double>(cached.bytes());
        }
    }
}

// A cap above the size binds, too, if several groups would hold all of it.
bool has_limits(const ClusterDataset& dataset) {
    return dataset.quota_floor_bytes > 0 || dataset.cached_floor_bytes > 0 ||
           dataset.quota_cap_bytes < std::numeric_limits<std::uint64_t>::max();
}

// Deals bytes out by weight, at most most[i] to each. Returns the bytes left.
double deal(double bytes, std::span<const double> weights, std::span<const double> most, std::span<double> given) {
    for (bool full = true; full && bytes > 0;) {
        double weight = 0;
        for (std::size_t i = 0; i < given.size(); ++i) weight += given[i] < most[i] ? weights[i] : 0;
        if (weight <= 0) return bytes;
        const double each = bytes / weight;
        full = false;
        for (std::size_t i = 0; i < given.size(); ++i) {
            if (given[i] >= most[i] || given[i] + each * weights[i] < most[i]) continue;
            bytes -= most[i] - given[i];
            given[i] = most[i];
            full = true;
        }
        if (full) continue;
        for (std::size_t i = 0; i < given.size(); ++i) given[i] += given[i] < most[i] ? each * weights[i] : 0;
        return 0;
    }
    return bytes;
}

void find_reads_on_several_nodes(const GpuShares& placement, std::uint32_t dataset,
                                 std::span<const std::uint32_t> ranks, Problem& problem) {
    std::uint32_t gpus = 0;
    for (const GpuShare& share : placement) gpus += share.gpus;
    const auto begin = static_cast<std::ptrdiff_t>(problem.reads.size());
    for (const GpuShare& share : placement) {
        problem.reads.push_back(
            {.cache = problem.cache_on(dataset, share.node), .part = gpus > 0 ? static_cast<double>(share.gpus) : 1});
    }
    const double whole = gpus > 0 ? gpus : static_cast<double>(placement.size());
    for (const GpuShare& share : placement) {
        problem.runs.push_back({.node = share.node, .part = (gpus > 0 ? share.gpus : 1) / whole});
    }
    const auto job_runs =
        std::ranges::subrange(problem.runs.end() - static_cast<std::ptrdiff_t>(placement.size()), problem.runs.end());
    std::ranges::sort(job_runs, {}, [&](const JobRun& run) { return ranks[run.node]; });
    const auto job_reads = std::ranges::subrange(problem.reads.begin() + begin, problem.reads.end());
    std::ranges::sort(job_reads, {}, &Read::cache);
    // Parts are still whole numbers here, so that a job within one group gets a part of exactly 1.
    std::size_t merged_count = 0;
    for (const Read& read : job_reads) {
        if (merged_count > 0 && job_reads[static_cast<std::ptrdiff_t>(merged_count) - 1].cache == read.cache) {
            job_reads[static_cast<std::ptrdiff_t>(merged_count) - 1].part += read.part;
        } else {
            job_reads[static_cast<std::ptrdiff_t>(merged_count++)] = read;
        }
    }
    problem.reads.resize(static_cast<std::size_t>(begin) + merged_count);
    for (auto read = problem.reads.begin() + begin; read != problem.reads.end(); ++read) read->part /= whole;
}

// Finds the parts of a job's bytes that it reads on each node, and in each group. `ranks`: the places of nodes in
// Problem::nodes_in_order.
[[gnu::always_inline]] inline void find_reads(const ClusterJob& job, std::uint32_t dataset,
                                              std::span<const std::uint32_t> ranks, Problem& problem) {
    const GpuShares& placement = place_of(job);
    if (placement.size() > 1) {
        find_reads_on_several_nodes(placement, dataset, ranks, problem);
        return;
    }
    const std::uint32_t node = placement.front().node;
    problem.reads.push_back({.cache = problem.cache_on(dataset, node), .part = 1});
    problem.runs.push_back({.node = node, .part = 1});
}

// Returns how much of the time each cache is read, summed over jobs: the jobs that count, each for its part of the
// time, and the jobs that wait for their next turn.
std::vector<double> count_readers(const ClusterState& state, std::span<const double> parts_of_time,
                                  std::span<const std::uint32_t> ranks, Problem& problem) {
    std::vector<double> readers(problem.caches.size());
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
        for (const Read& read : problem.reads_of(j)) readers[read.cache] += read.part * parts_of_time[j];
    }
    const std::size_t reads = problem.reads.size();
    const std::size_t runs = problem.runs.size();
    std::vector<std::pair<std::uint32_t, double>> waiting;  // cache, part of the time
    for (std::size_t i = 0; i < state.jobs.size(); ++i) {
        const ClusterJob& job = state.jobs[i];
        if (problem.terms_of_job[i] != kNoTerms || !job.waits_for_turn()) continue;
        find_reads(job, job.dataset, ranks, problem);
        for (const Read& read : std::span(problem.reads).subspan(reads)) {
            waiting.emplace_back(read.cache, read.part * job.time_share);
        }
        problem.reads.resize(reads);
        problem.runs.resize(runs);
    }
    std::ranges::sort(waiting);  // so that the sums do not depend on the state's order
    for (const auto& [cache, part] : waiting) readers[cache] += part;
    return readers;
}

// Turns quotas held on nodes into floors of their groups, and into caps if all nodes with the dataset hold them. A held
// quota above the dataset's size is useless, but still takes its room from other datasets.
void apply_held_quotas(const ClusterState& state, Problem& problem) {
    for (std::uint32_t i = 0; i < state.datasets.size(); ++i) {
        const ClusterDataset& dataset = state.datasets[i];
        if (dataset.held.empty()) continue;
        const DatasetTerms& terms = problem.datasets[i];
        for (std::uint32_t k = terms.caches_begin; k < terms.caches_end; ++k) {
            GroupCache& cache = problem.caches[k];
            const auto is_in_group = [&](const NodeCache& quota) {
                return problem.group_of_node[quota.node] == cache.group;
            };
            double held = 0;
            for (const NodeCache& quota : dataset.held)
                held += is_in_group(quota) ? static_cast<double>(quota.bytes()) : 0;
            const bool is_free = std::ranges::any_of(dataset.quotas, [&](const NodeCache& quota) {
                return is_in_group(quota) && !dataset.is_held_on(quota.node);
            });
            if (held == 0 && is_free) continue;
            cache.floor = std::min(held, cache.size);
            if (!is_free) cache.cap = cache.floor;
            problem.group_bytes[cache.group] -= held - cache.floor;
        }
    }
}

// Shares the limits for a dataset over its caches: by readers among the caches that are read; the rest that finds no
// room there goes to the other caches. If jobs are expected somewhere, the floor first has what is cached, so that
// nothing is fetched twice, and then goes to the groups of the expected nodes.
void share_limits(const ClusterState& state, std::span<const std::uint32_t> datasets_in_order,
                  std::span<const double> readers, Problem& problem) {
    if (std::ranges::none_of(state.datasets, has_limits)) return;
    std::vector<double> room = problem.group_bytes;
    for (const GroupCache& cache : problem.caches) room[cache.group] -= cache.floor;
    for (const std::uint32_t i : datasets_in_order) {
        const ClusterDataset& dataset = state.datasets[i];
        if (!has_limits(dataset)) continue;
        const DatasetTerms& terms = problem.datasets[i];
        const auto caches =
            std::span(problem.caches).subspan(terms.caches_begin, terms.caches_end - terms.caches_begin);
        const auto read = readers.subspan(terms.caches_begin, caches.size());
        std::vector<double> most, others, cached, caps(caches.size()), floors(caches.size());
        double floor = static_cast<double>(dataset.quota_floor_bytes);
        for (std::size_t k = 0; k < caches.size(); ++k) {
            most.push_back(std::min(caches[k].cap, caches[k].floor + std::max(0.0, room[caches[k].group])));
            others.push_back(read[k] > 0 ? 0 : 1);
        }
        const auto deal_out = [&](double bytes, std::span<const double> up_to, std::span<double> given) {
            const double left = deal(bytes, read, up_to, given);
            return deal(left, others, up_to, given);
        };
        deal_out(static_cast<double>(dataset.quota_cap_bytes), most, caps);
        for (std::size_t k = 0; k < caches.size(); ++k) cached.push_back(std::min(caps[k], caches[k].cached));
        if (!dataset.expected_on.empty()) {
            std::vector<double> in_group(room.size()), expected;
            for (const std::uint32_t node : dataset.expected_on) in_group[problem.group_of_node[node]] += 1;
            for (const GroupCache& cache : caches) expected.push_back(in_group[cache.group]);
            floor = deal(floor, expected, cached, floors);
            floor = deal_out(floor, cached, floors);
            floor = deal(floor, expected, caps, floors);
        }
        deal_out(floor, caps, floors);
        if (dataset.cached_floor_bytes > 0) {
            std::vector<double> kept(caches.size());
            deal_out(static_cast<double>(dataset.cached_floor_bytes), cached, kept);
            for (std::size_t k = 0; k < caches.size(); ++k) floors[k] = std::max(floors[k], kept[k]);
        }
        for (std::size_t k = 0; k < caches.size(); ++k) {
            const double held = caches[k].floor;
            caches[k].cap = std::max(held, std::min(caches[k].cap, caps[k]));
            caches[k].floor = std::max(held, std::min(caches[k].cap, floors[k]));
            room[caches[k].group] -= caches[k].floor - held;
        }
    }
}

// Makes each job's equal share of cache and bandwidth, and its rate from them.
void share_equally(std::span<const double> readers, Problem& problem) {
    std::vector<double> left = problem.group_bytes;
    for (const GroupCache& cache : problem.caches) left[cache.group] -= cache.floor;
    std::vector<double> readers_in_group(problem.group_bytes.size());
    for (std::size_t i = 0; i < readers.size(); ++i) readers_in_group[problem.caches[i].group] += readers[i];
    std::vector<double> equal_bytes;
    equal_bytes.reserve(problem.caches.size());
    for (std::size_t i = 0; i < readers.size(); ++i) {
        GroupCache& cache = problem.caches[i];
        const double share = readers[i] > 0 ? readers[i] / readers_in_group[cache.group] : 0;
        cache.equal_cache = std::min(cache.cap, cache.floor + std::max(0.0, left[cache.group]) * share);
        equal_bytes.push_back(cache.equal_cache);
    }
    const std::vector<CachedPart> equal_parts = problem.cached_parts(equal_bytes);
    double count = 0;
    double remote_left = problem.remote;
    for (const JobTerms& job : problem.jobs) count += job.time_share;
    for (const double floor : problem.bandwidth_floors) remote_left -= floor;
    problem.equal_rates.resize(problem.jobs.size());
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
        JobTerms& job = problem.jobs[j];
        const double share = std::max(0.0, remote_left) * job.time_share / count;
        job.equal_bandwidth = std::min(problem.bandwidth_caps[j], problem.bandwidth_floors[j] + share);
        const double hits = problem.steady_hit_ratio(j, equal_parts);
        problem.equal_rates[j] = predicted_rate(problem.ideals[j], job.equal_bandwidth, hits);
    }
}

// The lowest and the second lowest of the rates that nodes of a group allow.
struct LowestRates {
    double lowest = kUnlimited;
    double second = kUnlimited;
    std::uint32_t node = kNoTerms;  // the node of the lowest

    void add(double rate, std::uint32_t at) {
        second = std::min(second, std::max(lowest, rate));
        if (rate >= lowest) return;
        lowest = rate;
        node = at;
    }
    double without(std::uint32_t left_out) const { return node == left_out ? second : lowest; }
};

// Returns the job's node in the group if it has only one there, else kNoTerms. The job's part in the group then takes
// nothing from that node's outgoing network.
std::uint32_t sole_node_in(const Problem& problem, std::span<const JobRun> runs, std::uint32_t group) {
    std::uint32_t sole = kNoTerms;
    for (const JobRun& run : runs) {
        if (problem.group_of_node[run.node] != group) continue;
        if (sole != kNoTerms) return kNoTerms;
        sole = run.node;
    }
    return sole;
}

// Bounds equal rates by an equal share of each node's disk and network. With equal shares, a dataset's cache in a group
// lies on all nodes of the group, in memory and on disk, in proportion to their room. The jobs that run on a node share
// its incoming network. The jobs of a group share the disks of its nodes, and each node's outgoing network as far as
// they run on other nodes.
void bound_by_nodes(const ClusterState& state, Problem& problem) {
    const bool node_bounds = std::ranges::any_of(state.nodes, [](const ClusterNode& node) {
        return std::isfinite(node.nic_bytes_per_second) || std::isfinite(node.disk_read_bytes_per_second);
    });
    if (!node_bounds) return;
    const std::size_t groups = problem.group_bytes.size();
    std::vector<double> room(groups);
    std::vector<double> jobs_in_group(groups);
    std::vector<double> jobs_on_node(state.nodes.size());
    std::vector<double> parts_on_node(state.nodes.size());
    for (std::size_t n = 0; n < state.nodes.size(); ++n) room[problem.group_of_node[n]] += cache_bytes(state.nodes[n]);
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
        const double time_share = problem.jobs[j].time_share;
        for (const JobRun& run : problem.runs_of(j)) {
            jobs_in_group[problem.group_of_node[run.node]] += run.part * time_share;
            jobs_on_node[run.node] += time_share;
            parts_on_node[run.node] += run.part * time_share;
        }
    }
    // The rates of hits that the nodes of each group allow to a job that runs all the time.
    std::vector<double> from_disks(groups, kUnlimited);
    std::vector<LowestRates> from_networks(groups);
    for (const std::uint32_t n : problem.nodes_in_order) {
        const ClusterNode& node = state.nodes[n];
        const std::uint32_t group = problem.group_of_node[n];
        const auto allow = [&](double capacity, double jobs, double bytes) {
            return jobs > 0 && bytes > 0 ? capacity / jobs * (room[group] / bytes) : kUnlimited;
        };
        const double disk_rate =
            allow(node.disk_read_bytes_per_second, jobs_in_group[group], static_cast<double>(node.disk_bytes));
        from_disks[group] = std::min(from_disks[group], disk_rate);
        const double elsewhere = jobs_in_group[group] - parts_on_node[n];
        from_networks[group].add(allow(node.nic_bytes_per_second, elsewhere, cache_bytes(node)), n);
    }
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
        const JobTerms& job = problem.jobs[j];
        const std::span<const JobRun> runs = problem.runs_of(j);
        double& equal_rate = problem.equal_rates[j];
        for (const Read& read : problem.reads_of(j)) {
            const GroupCache& cache = problem.caches[read.cache];
            // Bytes that are hit in this group, for each byte that the job's part there reads.
            const double hits = problem.gains_once_filled[j] * hit_ratio(cache.equal_cache, cache.size);
            if (!(hits > 0)) continue;
            const double network = from_networks[cache.group].without(sole_node_in(problem, runs, cache.group));
            equal_rate = std::min(equal_rate, std::min(from_disks[cache.group], network) * job.time_share / hits);
        }
        for (const JobRun& run : runs) {
            const double nic = state.nodes[run.node].nic_bytes_per_second * job.time_share / jobs_on_node[run.node];
            if (run.part > 0) equal_rate = std::min(equal_rate, nic / run.part);
        }
    }
}

CacheGains gains_of(const ClusterJob& job, const ClusterDataset& dataset, double cached_part) {
    const double epochs_after = std::max(0.0, job.remaining_epochs - 1);
    if (job.unread_bytes == 0) return cache_gains(cached_part, 1, cached_part, epochs_after);
    const auto unread = static_cast<double>(job.unread_bytes);
    return cache_gains(cached_part, std::min(1.0, unread / static_cast<double>(dataset.size_bytes)),
                       static_cast<double>(job.unread_cached_bytes) / unread, epochs_after);
}

}  // namespace

std::vector<CachedPart> Problem::cached_parts(std::span<const double> bytes) const {
    std::vector<CachedPart> parts;
    parts.reserve(caches.size());
    for (std::size_t i = 0; i < caches.size(); ++i) parts.push_back(caches[i].part(bytes[i]));
    return parts;
}

double Problem::bytes_for(std::size_t job, const GroupCache& cache, double hits) const {
    const double kept = std::min(cache.cached, cache.size);
    const double hits_of_kept = gains_of_kept[job] * kept / cache.size;
    if (hits <= hits_of_kept) return kept * (hits / hits_of_kept);
    const double added = (hits - hits_of_kept) * cache.size;
    return gains_of_added[job] > 0 ? std::min(cache.size, kept + added / gains_of_added[job]) : kept;
}

Problem make_problem(const ClusterState& state, CountedJobs counted) {
    Problem problem;
    problem.remote = state.remote_bytes_per_second;
    const std::vector<std::uint32_t> datasets_in_order = in_order(state.datasets);
    problem.nodes_in_order = in_order(state.nodes);
    std::vector<std::uint32_t> ranks(state.nodes.size());
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) ranks[problem.nodes_in_order[rank]] = rank;
    problem.datasets.resize(state.datasets.size());
    find_groups(state, problem);
    const std::vector<std::uint32_t> jobs = jobs_that_count(state, counted, datasets_in_order, problem.datasets);
    find_caches(state, datasets_in_order, problem);

    problem.terms_of_job.resize(state.jobs.size(), kNoTerms);
    for (std::uint32_t j = 0; j < jobs.size(); ++j) problem.terms_of_job[jobs[j]] = j;
    problem.jobs.resize(jobs.size());
    for (auto* column :
         {&problem.ideals, &problem.effective_hit_ratios, &problem.bandwidth_floors, &problem.bandwidth_caps,
          &problem.gains_of_kept, &problem.gains_of_added, &problem.gains_once_filled}) {
        column->resize(jobs.size());
    }
    std::vector<double> parts_of_time(jobs.size());
    problem.reads.reserve(jobs.size());
    problem.runs.reserve(jobs.size());
    problem.reads_begin.resize(jobs.size() + 1);
    problem.runs_begin.resize(jobs.size() + 1);
    for (std::uint32_t j = 0; j < jobs.size(); ++j) {
        const ClusterJob& job = state.jobs[jobs[j]];
        const double part = counted == CountedJobs::by_time_share ? job.time_share : 1;
        parts_of_time[j] = job.time_share;
        problem.jobs[j] = {.job = jobs[j], .dataset = job.dataset, .weight = job.weight, .time_share = part};
        problem.ideals[j] = part * job.ideal_bytes_per_second;
        problem.bandwidth_floors[j] = part * job.bandwidth_floor_bytes_per_second;
        problem.bandwidth_caps[j] = part * job.bandwidth_cap_bytes_per_second;
        const bool limited =
            job.bandwidth_floor_bytes_per_second > 0 || !std::isinf(job.bandwidth_cap_bytes_per_second);
        problem.limits_bandwidth = problem.limits_bandwidth || limited;
        find_reads(job, job.dataset, ranks, problem);
        problem.reads_begin[j + 1] = static_cast<std::uint32_t>(problem.reads.size());
        problem.runs_begin[j + 1] = static_cast<std::uint32_t>(problem.runs.size());
        double hits = 0;
        for (const Read& read : problem.reads_of(j)) {
            const GroupCache& cache = problem.caches[read.cache];
            hits += read.part * hit_ratio(cache.cached, cache.size);
        }
        const double horizon_bytes = job.remaining_epochs > 1 ? state.horizon_s * job.ideal_bytes_per_second : 0;
        problem.effective_hit_ratios[j] = effective_hit_ratio(job, std::min(1.0, hits), horizon_bytes);
        const CacheGains parts = gains_of(job, state.datasets[job.dataset], hits);
        problem.gains_of_kept[j] = parts.of_kept;
        problem.gains_of_added[j] = parts.of_added;
        problem.gains_once_filled[j] = job.remaining_epochs > 1 ? 1 : parts.of_kept;
    }
    const std::vector<double> readers = count_readers(state, parts_of_time, ranks, problem);
    apply_held_quotas(state, problem);
    share_limits(state, datasets_in_order, readers, problem);
    if (problem.jobs.empty()) return problem;
    share_equally(readers, problem);
    bound_by_nodes(state, problem);
    return problem;
}

Problem make_utilisation_problem(const ClusterState& state, CountedJobs counted) {
    Problem problem = make_problem(state, counted);
    for (JobTerms& terms : problem.jobs) {
        std::uint32_t gpus = 0;
        for (const GpuShare& share : place_of(state.jobs[terms.job])) gpus += share.gpus;
        terms.value = terms.weight * std::max(1U, gpus) / state.jobs[terms.job].ideal_bytes_per_second;
    }
    return problem;
}

Problem problem_for(const ClusterState& state, ObjectiveKind kind, CountedJobs counted) {
    return kind == ObjectiveKind::utilisation ? make_utilisation_problem(state, counted) : make_problem(state, counted);
}

}  // namespace larder::allocator
