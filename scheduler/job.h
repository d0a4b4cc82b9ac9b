#pragma once

// What is declared of a job: what it needs, how fast it reads on which GPUs, and what was promised to it. Work is
// counted in bytes of training data: a job's throughput is what it reads, so a rate in bytes per second says how fast
// it gets on, whether GPUs or storage bind (SiloD, EuroSys '23).

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

// What a deadline means (Chronus, SoCC '21): strict: late is worthless; soft: late is worth less; best effort: none.
enum class Service : std::uint8_t { best_effort, soft_deadline, strict_deadline };

struct JobSpec {
    std::string name;
    std::uint32_t tenant = 0;  // index in Snapshot::tenants
    double submit_s = 0;
    // A gang: all of them or none. Elastic when gpus_min < gpus_max; `gpus` is what its rates are stated for.
    std::uint32_t gpus = 1;
    std::uint32_t gpus_min = 1;
    std::uint32_t gpus_max = 1;
    // Rate with gpus_min, gpus_min + 1, ..., gpus_max GPUs over the rate with `gpus`; empty: in proportion.
    std::vector<double> scaling;
    std::uint32_t gpu_type = kAnyGpuType;  // insists on it
    // f* with `gpus` GPUs of each type; 0: cannot run there.
    std::vector<double> ideal_bytes_per_second;
    // Rate on 1, 2, ... nodes over the rate on as few as can be; empty: communication never binds.
    std::vector<double> rate_by_nodes;
    std::uint32_t dataset = kNoDataset;  // index in Snapshot::datasets
    double total_bytes = kNever;         // of work; kNever: not known
    double deadline_s = kNever;          // a point in time
    Service service = Service::best_effort;
    double weight = 1;          // of its share, where a policy gives shares
    std::int32_t priority = 0;  // more goes first, where a policy heeds it
    bool preemptible = true;
    // Has no claim: runs on what nobody with a claim uses, in anybody's share, and goes as soon as one does.
    bool opportunistic = false;
    double restart_s = 0;         // of GPU time lost at each start after the first
    double checkpoint_bytes = 0;  // written when preempted, read when it starts again
    double packed_rate = 0;       // what is left of its rate when it shares its GPUs with one other; 0: it may not
};

inline bool may_run_on(const JobSpec& job, std::uint32_t gpu_type) {
    return job.ideal_bytes_per_second[gpu_type] > 0 && (job.gpu_type == kAnyGpuType || job.gpu_type == gpu_type);
}
// f* with so many GPUs of the type.
double ideal_rate(const JobSpec& job, std::uint32_t gpu_type, std::uint32_t gpus);
// What is left of it on so many nodes, when `nodes_least` would do.
double consolidation(std::span<const double> rate_by_nodes, std::uint32_t nodes, std::uint32_t nodes_least);
inline double consolidation(const JobSpec& job, std::uint32_t nodes, std::uint32_t nodes_least) {
    return consolidation(job.rate_by_nodes, nodes, nodes_least);
}

}  // namespace larder::scheduler
