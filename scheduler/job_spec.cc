#include "scheduler/job_spec.h"

#include <algorithm>

#include "base/assert.h"

namespace larder::scheduler {

double ideal_rate(const JobSpec& job, std::uint32_t gpu_type, std::uint32_t gpus) {
    LARDER_ASSERT(gpu_type < job.ideal_bytes_per_second.size());
    const double stated = job.ideal_bytes_per_second[gpu_type];
    if (gpus == job.gpus) return stated;
    if (gpus == 0) return 0;
    if (job.scaling.empty()) return stated * gpus / job.gpus;
    const std::size_t place = gpus < job.gpus_min ? 0 : gpus - job.gpus_min;
    return stated * job.scaling[std::min(place, job.scaling.size() - 1)];
}

double consolidation(std::span<const double> rate_by_nodes, std::uint32_t nodes, std::uint32_t nodes_least) {
    if (rate_by_nodes.empty() || nodes <= nodes_least) return 1;
    const auto at = [&](std::uint32_t count) {
        return rate_by_nodes[std::min<std::size_t>(std::max(count, 1U) - 1, rate_by_nodes.size() - 1)];
    };
    return at(nodes) / at(nodes_least);
}

}  // namespace larder::scheduler
