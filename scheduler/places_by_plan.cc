#include "scheduler/places_by_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <utility>

#include "allocator/model.h"
#include "base/assert.h"

namespace larder::scheduler {
namespace {

// A better plan must gain this part of what the gang adds at f*. The usual place leaves more room for large gangs.
constexpr double kLeastGain = 0.02;
// The most nodes that are looked at in each order: a gang gains most from the best of them.
constexpr std::ptrdiff_t kNodesMax = 64;
constexpr double kRounding = 1e-9;  // sums may differ in their last digits

// Returns how many plans one decision may solve. The time of a plan grows with the size of the state.
std::size_t trials(const allocator::ClusterState& state) {
    constexpr std::size_t kTrialsMax = 64;
    constexpr std::size_t kWork = 2'000'000;
    const std::size_t size = (state.jobs.size() + state.datasets.size()) * state.nodes.size();
    return std::min(kTrialsMax, kWork / std::max<std::size_t>(1, size));
}

}  // namespace

PlacesByPlan::PlacesByPlan(const Snapshot& snapshot, PlanInput input)
    : snapshot_(snapshot),
      input_(std::move(input)),
      cluster_(*input_.cluster),
      gpus_on_largest_node_(cluster_.gpu_types.size()),
      hits_(input_.state.nodes.size()),
      wanted_(input_.state.datasets.size()),
      jobs_reading_(input_.state.datasets.size()),
      trials_left_(trials(input_.state)) {
    place_matters_ =
        snapshot.storage.own_caches || std::ranges::any_of(input_.state.nodes, [](const allocator::ClusterNode& node) {
            return !std::isinf(node.nic_bytes_per_second);
        });
    if (!place_matters_) return;
    LARDER_ASSERT(input_.node_of.size() == cluster_.nodes.size() && input_.job_of.size() == snapshot.jobs.size());
    networks_.reserve(input_.state.nodes.size());
    for (const allocator::ClusterNode& node : input_.state.nodes) networks_.push_back({node.nic_bytes_per_second});
    known_nodes_.resize(cluster_.gpu_types.size());
    for (std::uint32_t n = 0; n < cluster_.nodes.size(); ++n) {
        const GpuNode& node = cluster_.nodes[n];
        gpus_on_largest_node_[node.gpu_type] = std::max(gpus_on_largest_node_[node.gpu_type], node.gpus);
        if (input_.node_of[n] != PlanInput::kUnknown) known_nodes_[node.gpu_type].push_back(n);
    }
    for (const JobState* job : snapshot.jobs) largest_gang_gpus_ = std::max(largest_gang_gpus_, job->spec->gpus);
    rates_.reserve(input_.state.jobs.size());
    for (const allocator::ClusterJob& job : input_.state.jobs) rates_.push_back(job.ideal_bytes_per_second);
    for (std::size_t j = 0; j < snapshot.jobs.size(); ++j) {
        const double rate = snapshot.jobs[j]->rate_bytes_per_second;
        if (input_.job_of[j] != PlanInput::kUnknown && rate > 0) rates_[input_.job_of[j]] = rate;
    }
    for (std::size_t i = 0; i < rates_.size(); ++i) count_reads(input_.state.jobs[i], rates_[i], 1);
    // Only a plan says what room for cache is worth.
    room_.resize(input_.state.nodes.size());
    if (trials_left_ > 0) find_room();
    // Jobs that have just started may not be in the state yet.
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        const JobState& job = *snapshot.jobs[j];
        if (!job.running || input_.job_of[j] != PlanInput::kUnknown) continue;
        start({.job = j, .gpus = job.gpus, .gpu_type = job.gpu_type}, job.placement);
    }
}

void PlacesByPlan::find_room() {
    for (std::size_t n = 0; n < room_.size(); ++n) {
        const allocator::ClusterNode& node = input_.state.nodes[n];
        room_[n] = static_cast<double>(node.memory_bytes) + static_cast<double>(node.disk_bytes);
    }
    // Datasets without running jobs give their room up.
    std::vector<bool> is_read(input_.state.datasets.size());
    for (const allocator::ClusterJob& job : input_.state.jobs) {
        if (!job.waits_for_gpus()) is_read[job.dataset] = true;
    }
    for (std::size_t d = 0; d < is_read.size(); ++d) {
        if (!is_read[d]) continue;
        for (const allocator::NodeCache& quota : input_.state.datasets[d].quotas) {
            room_[quota.node] -= static_cast<double>(quota.bytes());
        }
    }
}

double PlacesByPlan::hits_of(std::uint32_t dataset, const allocator::NodeCache& cached) const {
    return allocator::hit_ratio(static_cast<double>(cached.bytes()),
                                static_cast<double>(input_.state.datasets[dataset].size_bytes));
}

double PlacesByPlan::hits_on(std::uint32_t dataset, std::uint32_t state_node) const {
    const allocator::ClusterDataset& read = input_.state.datasets[dataset];
    const auto found = std::ranges::lower_bound(read.cached, state_node, {}, &allocator::NodeCache::node);
    return found == read.cached.end() || found->node != state_node ? 0 : hits_of(dataset, *found);
}

// Adds a job's reads to its nodes' networks and to its dataset (`times` is 1), or takes them away (-1).
void PlacesByPlan::count_reads(const allocator::ClusterJob& job, double rate, int times) {
    if (!job.placement.empty()) {
        wanted_[job.dataset] += times * job.ideal_bytes_per_second;
        jobs_reading_[job.dataset] += times;
        if (jobs_reading_[job.dataset] == 0) wanted_[job.dataset] = 0;  // and no rounding error
    }
    double gpus = 0;
    for (const allocator::GpuShare& share : job.placement) gpus += share.gpus;
    for (const allocator::GpuShare& share : job.placement) {
        const double part = gpus > 0 ? share.gpus / gpus : 1 / static_cast<double>(job.placement.size());
        networks_[share.node].received += times * part * rate * (1 - hits_on(job.dataset, share.node));
        networks_[share.node].readers += times;
    }
}

bool PlacesByPlan::is_known(const Placement& placement) const {
    return std::ranges::all_of(
        placement, [&](const NodeGpus& share) { return input_.node_of[share.node] != PlanInput::kUnknown; });
}

// Returns how many nodes suffice for the gang.
std::uint32_t PlacesByPlan::nodes_least(const Gang& gang) const {
    const std::uint32_t most = std::max(1U, gpus_on_largest_node_[gang.gpu_type]);
    return (gang.gpus + most - 1) / most;
}

// Returns f* less the cost of communication between the gang's nodes.
double PlacesByPlan::ideal_at(const Gang& gang, const Placement& placement) const {
    const JobSpec& spec = *snapshot_.jobs[gang.job]->spec;
    const auto nodes = static_cast<std::uint32_t>(placement.size());
    return ideal_rate(spec, gang.gpu_type, gang.gpus) * consolidation(spec, nodes, nodes_least(gang));
}

// Returns the highest ideal_at() of all placements.
double PlacesByPlan::highest_ideal(const Gang& gang) const {
    const JobSpec& spec = *snapshot_.jobs[gang.job]->spec;
    const std::uint32_t least = nodes_least(gang);
    double most = 1;
    for (std::uint32_t nodes = least + 1; nodes <= spec.rate_by_nodes.size(); ++nodes) {
        most = std::max(most, consolidation(spec, nodes, least));
    }
    return ideal_rate(spec, gang.gpu_type, gang.gpus) * most;
}

// The model's bounds f*, nic / (missed on the node) and b / (1 - h), with an equal part of the remote for b.
double PlacesByPlan::estimated_rate(const Gang& gang, const Placement& placement) const {
    double rate = ideal_at(gang, placement);
    const auto at = input_.dataset_of.find(snapshot_.jobs[gang.job]->spec->dataset);
    double hits_in_reach = 0;
    for (const NodeGpus& share : placement) {
        const std::uint32_t node = input_.node_of[share.node];
        const double part = static_cast<double>(share.count()) / gang.gpus;
        const double hits = at == input_.dataset_of.end() ? 0 : hits_on(at->second, node);
        if (hits < 1) rate = std::min(rate, networks_[node].left() / (part * (1 - hits)));
        hits_in_reach += part * hits;
    }
    // Nodes that read from each other reach the same data wherever the gang is.
    if (!snapshot_.storage.own_caches) return rate;
    const double jobs = static_cast<double>(input_.state.jobs.size()) + 1;
    return allocator::predicted_rate(rate, input_.state.remote_bytes_per_second / jobs, hits_in_reach);
}

PlacesByPlan::FreeNodes PlacesByPlan::free_nodes(const Gang& gang, const Rules& rules) {
    const auto at = input_.dataset_of.find(snapshot_.jobs[gang.job]->spec->dataset);
    std::span<const allocator::NodeCache> cached;
    if (at != input_.dataset_of.end()) cached = input_.state.datasets[at->second].cached;
    for (const allocator::NodeCache& part : cached) hits_[part.node] = hits_of(at->second, part);
    FreeNodes nodes;
    nodes.reserve(known_nodes_[gang.gpu_type].size());
    for (const std::uint32_t n : known_nodes_[gang.gpu_type]) {
        const std::uint64_t free = rules.free_on(n);
        if (free == 0) continue;
        const std::uint32_t in_state = input_.node_of[n];
        nodes.push_back({.node = n,
                         .free = free,
                         .network = networks_[in_state].left(),
                         .hits = hits_[in_state],
                         .room = room_[in_state]});
    }
    for (const allocator::NodeCache& part : cached) hits_[part.node] = 0;
    return nodes;
}

// Passes places on the nodes with the most network or cache to spare and with the most of the data to `take`, for few
// nodes and for more, until `take` returns false. Some places come twice.
template <typename Take>
void PlacesByPlan::try_places(const Gang& gang, FreeNodes nodes, const Take& take) const {
    const auto place_on = [&](std::span<const FreeNode> best, std::uint32_t gpus_per_node) {
        Placement placement;
        std::uint32_t missing = gang.gpus;
        // Nodes with room for their whole part come first.
        for (const bool whole : {true, false}) {
            for (const FreeNode& node : best) {
                const std::uint32_t wanted = std::min(missing, gpus_per_node);
                if (wanted == 0) break;
                if ((node.count() >= wanted) != whole) continue;
                const std::uint32_t taken = std::min(wanted, node.count());
                if (std::ranges::find(placement, node.node, &NodeGpus::node) != placement.end()) continue;
                placement.push_back({.node = node.node, .gpus = lowest_bits(node.free, taken)});
                missing -= taken;
            }
        }
        if (missing > 0) placement.clear();
        std::ranges::sort(placement, {}, &NodeGpus::node);
        return placement;
    };
    const auto try_in_order_of = [&](auto worth) {
        const auto better = [&](const FreeNode& a, const FreeNode& b) {
            return worth(a) != worth(b) ? worth(a) > worth(b) : a.node < b.node;
        };
        // One node is found without sorting: the best one with room for the gang, if it is among the best of all.
        const auto one_node = [&] {
            const FreeNode* best = nullptr;
            for (const FreeNode& node : nodes) {
                if (node.count() >= gang.gpus && (best == nullptr || better(node, *best))) best = &node;
            }
            const auto precedes = [&](const FreeNode& node) { return better(node, *best); };
            if (best == nullptr || std::ranges::count_if(nodes, precedes) >= kNodesMax) return Placement();
            return Placement{{.node = best->node, .gpus = lowest_bits(best->free, gang.gpus)}};
        };
        const auto end = nodes.begin() + std::min(kNodesMax, std::ssize(nodes));
        bool is_sorted = false;
        for (std::uint32_t parts = 1; parts <= gang.gpus; parts *= 2) {
            Placement placement = parts == 1 ? one_node() : Placement();
            if (placement.empty()) {
                if (!is_sorted) {
                    if (end != nodes.end()) std::ranges::nth_element(nodes, end, better);
                    std::sort(nodes.begin(), end, better);
                    is_sorted = true;
                }
                placement = place_on({nodes.begin(), end}, (gang.gpus + parts - 1) / parts);
            }
            if (!placement.empty() && !take(std::move(placement))) return false;
        }
        return true;
    };
    if (!try_in_order_of([](const FreeNode& node) { return node.network; })) return;
    if (snapshot_.storage.own_caches && !try_in_order_of([](const FreeNode& node) { return node.room; })) return;
    if (std::ranges::none_of(nodes, [](const FreeNode& node) { return node.hits > 0; })) return;
    if (!try_in_order_of([](const FreeNode& node) { return node.hits; })) return;
    try_in_order_of([](const FreeNode& node) {
        return node.hits < 1 ? node.network / (1 - node.hits) : std::numeric_limits<double>::infinity();
    });
}

// Returns allowed places other than `usual`, those with the highest estimates first.
std::vector<Placement> PlacesByPlan::other_places(const Gang& gang, const Placement& usual, const Rules& rules) {
    std::vector<Placement> places;
    try_places(gang, free_nodes(gang, rules), [&](Placement place) {
        if (place != usual && std::ranges::find(places, place) == places.end()) places.push_back(std::move(place));
        return true;
    });
    std::ranges::stable_sort(places, [&](const Placement& a, const Placement& b) {
        return estimated_rate(gang, a) > estimated_rate(gang, b);
    });
    std::erase_if(places, [&](const Placement& place) { return !may_have(place, rules); });
    return places;
}

// Chooses a place by estimates alone.
Placement PlacesByPlan::choose_by_estimate(const Gang& gang, const Placement& usual, const Rules& rules) {
    const double usual_rate = estimated_rate(gang, usual);
    const double least_gain = kLeastGain * ideal_at(gang, usual);
    // Most gangs read at f* in their usual place, so no other place can be better.
    const double highest = highest_ideal(gang);
    if (highest - usual_rate <= least_gain) return usual;
    Placement best = usual;
    double best_rate = usual_rate;
    try_places(gang, free_nodes(gang, rules), [&](Placement place) {
        const double rate = estimated_rate(gang, place);
        if (rate <= best_rate || rate - usual_rate <= least_gain || !may_have(place, rules)) return true;
        best = std::move(place);
        best_rate = rate;
        return rate < highest;
    });
    return best;
}

allocator::ClusterJob PlacesByPlan::as_planned(const Gang& gang, const Placement& placement) {
    const JobState& job = *snapshot_.jobs[gang.job];
    const DatasetState& read = snapshot_.datasets[job.spec->dataset];
    const auto [at, added] =
        input_.dataset_of.try_emplace(job.spec->dataset, static_cast<std::uint32_t>(input_.state.datasets.size()));
    if (added) {
        input_.state.datasets.push_back(
            {.name = read.name, .size_bytes = static_cast<std::uint64_t>(std::max(1.0, read.size_bytes))});
        wanted_.push_back(0);
        jobs_reading_.push_back(0);
    }
    allocator::ClusterJob planned{.name = job.spec->name,
                                  .dataset = at->second,
                                  .gpus = gang.gpus,
                                  .ideal_bytes_per_second = ideal_at(gang, placement),
                                  .weight = job.spec->weight};
    if (input_.epochs_known) planned.remaining_epochs = job.remaining_bytes / std::max(1.0, read.size_bytes);
    planned.placement.reserve(placement.size());
    for (const NodeGpus& share : placement) {
        planned.placement.push_back({.node = input_.node_of[share.node], .gpus = share.count()});
    }
    return planned;
}

allocator::PlanValue PlacesByPlan::value_at(const Gang& gang, const Placement& placement) {
    LARDER_ASSERT(trials_left_ > 0);
    --trials_left_;
    input_.state.jobs.push_back(as_planned(gang, placement));
    const auto job = static_cast<std::uint32_t>(input_.state.jobs.size() - 1);
    allocator::PlanValue value = allocator::quick_plan_value(input_.state, input_.objective, job);
    input_.state.jobs.pop_back();
    return value;
}

// Returns the bytes/s that the place's caches would serve to all jobs of other datasets. A node counts once for each of
// its GPUs in the place.
double PlacesByPlan::hits_of_others(const Gang& gang, const Placement& placement) const {
    const std::uint32_t own = input_.dataset_of.at(snapshot_.jobs[gang.job]->spec->dataset);
    double sum = 0;
    for (const NodeGpus& share : placement) {
        for (std::uint32_t d = 0; d < wanted_.size(); ++d) {
            if (d != own) sum += share.count() * wanted_[d] * hits_on(d, input_.node_of[share.node]);
        }
    }
    return sum;
}

bool PlacesByPlan::is_whole(std::uint32_t node, const Rules& rules) const {
    return static_cast<std::uint32_t>(std::popcount(rules.free_on(node))) == cluster_.nodes[node].gpus;
}

std::ptrdiff_t PlacesByPlan::whole_nodes(const Placement& placement, const Rules& rules) const {
    return std::ranges::count_if(placement, [&](const NodeGpus& share) { return is_whole(share.node, rules); });
}

// Returns how many whole nodes may be broken up, so that enough are left for the largest gang that waits or runs.
std::ptrdiff_t PlacesByPlan::spare_whole_nodes(const Gang& gang, const Rules& rules) const {
    std::ptrdiff_t spare = 0;
    for (std::uint32_t n = 0; n < cluster_.nodes.size(); ++n) {
        if (cluster_.nodes[n].gpu_type == gang.gpu_type && is_whole(n, rules)) ++spare;
    }
    const std::uint32_t most = std::max(1U, gpus_on_largest_node_[gang.gpu_type]);
    return spare - static_cast<std::ptrdiff_t>((largest_gang_gpus_ + most - 1) / most);
}

Placement PlacesByPlan::choose(const Gang& gang, const Placement& usual, const Rules& rules) {
    if (!place_matters_ || !reads(gang) || !is_known(usual)) return usual;
    if (!(ideal_at(gang, usual) > 0)) return usual;
    if (trials_left_ < 2) return choose_by_estimate(gang, usual, rules);
    std::vector<Placement> places = other_places(gang, usual, rules);
    if (places.empty()) return usual;
    places.insert(places.begin(), usual);
    std::vector<allocator::PlanValue> values;
    values.reserve(places.size());
    std::size_t best = 0;
    for (const Placement& place : places) {
        if (trials_left_ == 0) break;
        values.push_back(value_at(gang, place));
        if (values.back().better_than(values[best], kLeastGain)) best = values.size() - 1;
    }
    if (!snapshot_.storage.own_caches) return places[best];
    // GPUs near data are left to the jobs that read it, but not by breaking up whole nodes that large gangs need.
    const std::ptrdiff_t whole_max = std::max(whole_nodes(places[best], rules), spare_whole_nodes(gang, rules));
    std::size_t chosen = best;
    double least = hits_of_others(gang, places[best]);
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (places[i].size() > places[best].size() || values[best].better_than(values[i], kLeastGain)) continue;
        if (whole_nodes(places[i], rules) > whole_max) continue;
        const double hits = hits_of_others(gang, places[i]);
        if (hits >= least * (1 - kRounding)) continue;
        chosen = i;
        least = hits;
    }
    return places[chosen];
}

void PlacesByPlan::start(const Gang& gang, const Placement& placement) {
    if (!place_matters_ || !reads(gang) || !is_known(placement) || !(ideal_at(gang, placement) > 0)) return;
    stop(gang.job);
    const double rate = std::min(ideal_at(gang, placement), estimated_rate(gang, placement));
    std::uint32_t& at = input_.job_of[gang.job];
    if (at == PlanInput::kUnknown) {
        at = static_cast<std::uint32_t>(input_.state.jobs.size());
        input_.state.jobs.push_back(as_planned(gang, placement));
        rates_.push_back(rate);
    } else {
        input_.state.jobs[at] = as_planned(gang, placement);
        rates_[at] = rate;
    }
    count_reads(input_.state.jobs[at], rate, 1);
}

void PlacesByPlan::stop(std::uint32_t job) {
    if (!place_matters_) return;
    const std::uint32_t at = input_.job_of[job];
    if (at == PlanInput::kUnknown) return;
    count_reads(input_.state.jobs[at], rates_[at], -1);
    input_.state.jobs[at].placement.clear();
    input_.state.jobs[at].last_placement.clear();
}

}  // namespace larder::scheduler
