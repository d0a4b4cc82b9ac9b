#include "scheduler/placement/gang_rate.h"

#include <algorithm>

#include "scheduler/job_spec.h"

namespace larder::scheduler {

double gang_rate(const PlaceRequest& request, std::uint32_t nodes, std::uint32_t nodes_least, std::uint32_t near_gpus) {
    const double communication = consolidation(request.rate_by_nodes, nodes, nodes_least);
    if (near_gpus >= request.gpus) return communication;
    const double far = 1 - static_cast<double>(near_gpus) / request.gpus;
    return std::min(communication, std::min(1.0, request.rate_far / far));
}

}  // namespace larder::scheduler
