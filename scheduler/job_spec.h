#pragma once

// A job's declaration: its needs, its rate on each GPU type, and its deadline. Work is counted in bytes of
// training data: a job's throughput is the data it reads, so a rate in bytes per second says how fast the job
// progresses, whether GPUs or storage limit it (SiloD, EuroSys '23).

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/gpu_cluster.h"

namespace larder::scheduler {

inline constexpr double kNever = std::numeric_limits<double>::infinity();
inline constexpr std::uint32_t kNoDataset = std::numeric_limits<std::uint32_t>::max();
inline constexpr std::uint32_t kNoModel = std::numeric_limits<std::uint32_t>::max();

// The kind of a job's deadline (Chronus, SoCC '21). Strict: a late result is worthless. Soft: a late result is worth
// less. Best effort: there is no deadline.
enum class ServiceClass : std::uint8_t { best_effort, soft_deadline, strict_deadline };

// A job's result is worth `value` if the job ends by `until_s`, a point in time.
struct ValueUntil {
    double until_s = 0;
    double value = 0;

    bool operator==(const ValueUntil&) const = default;
};

// A GangShape limits where a gang may lie, beyond its GPU type. Only cells know hierarchies, levels and pinned cells.
struct GangShape {
    // The GPUs of each pod, which all lie on one node; empty: any nodes. Those of an elastic gang are equal, and as
    // many as the gang has at most.
    std::vector<std::uint32_t> pods;
    std::string hierarchy;  // the only hierarchy it may use; empty: any
    std::string together;   // a level: the gang lies within one cell of this level; empty: anywhere
    std::string cell;       // the name of its tenant's pinned cell; empty: any cell

    bool is_free() const { return pods.empty() && needs_no_cells(); }
    bool needs_no_cells() const { return hierarchy.empty() && together.empty() && cell.empty(); }
    // Returns the pods of the gang when it has so many GPUs.
    std::span<const std::uint32_t> pods_of(std::uint32_t gpus) const;
    bool operator==(const GangShape&) const = default;
};

struct JobSpec {
    std::string name;
    std::uint32_t tenant = 0;  // index in Snapshot::tenants
    double submit_s = 0;
    // The job is a gang: it gets all its GPUs or none. It is elastic if gpus_min < gpus_max. Rates are stated for
    // `gpus`.
    std::uint32_t gpus = 1;
    std::uint32_t gpus_min = 1;
    std::uint32_t gpus_max = 1;
    // The rate with gpus_min, gpus_min + 1, ..., gpus_max GPUs, divided by the rate with `gpus`. Empty: proportional.
    std::vector<double> scaling;
    std::uint32_t gpu_type = kAnyGpuType;  // the only type it may run on
    // The ideal rate f* with `gpus` GPUs, by type; 0: the job cannot run on the type.
    std::vector<double> ideal_bytes_per_second;
    // The rate on 1, 2, ... nodes, divided by the rate on the fewest possible nodes. Empty: communication never limits
    // it.
    std::vector<double> rate_by_nodes;
    GangShape shape;
    std::uint32_t dataset = kNoDataset;  // index in Snapshot::datasets
    double total_bytes = kNever;         // total work; kNever: unknown
    double deadline_s = kNever;          // point in time; kNever: none
    ServiceClass service = ServiceClass::best_effort;
    // The value of its result by the time of its end: later times, lower values, and none after the last. The first
    // time is the deadline. Empty: 1 by the deadline, then none.
    std::vector<ValueUntil> values;
    double weight = 1;          // weight of the job's share, in policies with shares
    std::int32_t priority = 0;  // higher goes first
    bool preemptible = true;
    // The job has no claim: it may run on any GPUs that no job with a claim uses, and stops once such a job needs them.
    bool opportunistic = false;
    // While it runs, nodes are added or removed without a restart, if the others keep their GPUs and the first stays.
    bool resizable = false;
    double restart_s = 0;         // time lost at each start after the first
    double checkpoint_bytes = 0;  // written at preemption, read at the next start
    double packed_rate = 0;       // the part of its rate that is left when it shares GPUs; 0: may not share
    // The part of each GPU's memory that it uses at most. 0: unknown, so it may not share.
    double gpu_memory_part = 0;
    std::uint32_t model = kNoModel;  // its row in Snapshot::pair_rates

    bool has_range() const { return gpus_min < gpus_max; }
    // Returns the least number of GPUs by which an elastic job changes: those of a pod, if it has pods.
    std::uint32_t gpus_step() const { return has_range() && !shape.pods.empty() ? shape.pods.front() : 1; }
    // Returns the most GPUs that the job can use of so many.
    std::uint32_t usable_of(std::uint32_t of) const { return of - of % gpus_step(); }
};

inline bool may_run_on(const JobSpec& job, std::uint32_t gpu_type) {
    return job.ideal_bytes_per_second[gpu_type] > 0 && (job.gpu_type == kAnyGpuType || job.gpu_type == gpu_type);
}
// Returns what the result of a job with a deadline is worth if the job ends at `end_s`; kNever: it does not end.
double value_of_end(const JobSpec& job, double end_s);
// Returns until when a result has the value that it has at `end_s`; kNever: it has none any more.
double value_until_s(const JobSpec& job, double end_s);
// Returns f* with `gpus` GPUs of the type, in bytes/s.
double ideal_rate(const JobSpec& job, std::uint32_t gpu_type, std::uint32_t gpus);
// Returns the part of the rate left on `nodes` nodes, where `nodes_least` nodes would suffice.
double consolidation(std::span<const double> rate_by_nodes, std::uint32_t nodes, std::uint32_t nodes_least);
inline double consolidation(const JobSpec& job, std::uint32_t nodes, std::uint32_t nodes_least) {
    return consolidation(job.rate_by_nodes, nodes, nodes_least);
}

}  // namespace larder::scheduler
