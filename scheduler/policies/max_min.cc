#include "scheduler/policies/max_min.h"

namespace larder::scheduler {

double equal_share_rate(const Snapshot& snapshot, std::span<const double> rates) {
    double rate = 0;
    double gpus = 0;
    for (std::size_t type = 0; type < rates.size(); ++type) {
        rate += rates[type] * snapshot.gpu_types[type].gpus;
        gpus += snapshot.gpu_types[type].gpus;
    }
    return rate / gpus;
}

void MaxMin::set_terms(const Snapshot& snapshot, const JobState& job, double gpus, std::span<double> rates,
                       std::span<double> terms) const {
    if (!knows_types_) {
        for (double& rate : rates) rate = rate > 0 ? 1 : 0;
    }
    terms[0] = equal_share_rate(snapshot, rates) * job.spec->weight / gpus;
}

Result<Shares> MaxMin::allocate(const Snapshot&, const Kinds& kinds) {
    std::vector<double> needs;
    needs.reserve(kinds.kinds.size());
    for (const Kind& kind : kinds.kinds) needs.push_back(kind.terms[0]);
    return shares_at_highest_level(kinds, needs);
}

}  // namespace larder::scheduler
