#include "scheduler/job_spec.h"

#include <algorithm>

#include "base/assert.h"

namespace larder::scheduler {

std::span<const std::uint32_t> GangShape::pods_of(std::uint32_t gpus) const {
    std::size_t count = 0;
    for (std::uint32_t sum = 0; sum < gpus && count < pods.size(); ++count) sum += pods[count];
    return std::span(pods).first(count);
}

double ideal_rate(const JobSpec& job, std::uint32_t gpu_type, std::uint32_t gpus) {
    LARDER_ASSERT(gpu_type < job.ideal_bytes_per_second.size());
    const double stated_rate = job.ideal_bytes_per_second[gpu_type];
    if (gpus == job.gpus) return stated_rate;
    if (gpus == 0) return 0;
    if (job.scaling.empty()) return stated_rate * gpus / job.gpus;
    const std::size_t index = gpus < job.gpus_min ? 0 : gpus - job.gpus_min;
    return stated_rate * job.scaling[std::min(index, job.scaling.size() - 1)];
}

namespace {

// Returns the step of the job's values that an end at `end_s` falls into.
ValueUntil value_step(const JobSpec& job, double end_s) {
    if (job.values.empty() && end_s <= job.deadline_s) return {.until_s = job.deadline_s, .value = 1};
    const auto step = std::ranges::find_if(job.values, [&](const ValueUntil& one) { return end_s <= one.until_s; });
    return step == job.values.end() ? ValueUntil{.until_s = kNever, .value = 0} : *step;
}

}  // namespace

double value_of_end(const JobSpec& job, double end_s) {
    return value_step(job, end_s).value;
}

double value_until_s(const JobSpec& job, double end_s) {
    return value_step(job, end_s).until_s;
}

double consolidation(std::span<const double> rate_by_nodes, std::uint32_t nodes, std::uint32_t nodes_least) {
    if (rate_by_nodes.empty() || nodes <= nodes_least) return 1;
    const auto at = [&](std::uint32_t count) {
        return rate_by_nodes[std::min<std::size_t>(std::max(count, 1U) - 1, rate_by_nodes.size() - 1)];
    };
    return at(nodes) / at(nodes_least);
}

}  // namespace larder::scheduler
