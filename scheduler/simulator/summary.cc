#include "scheduler/simulator/summary.h"

#include <algorithm>
#include <cmath>

namespace larder::scheduler {

Quantiles quantiles(std::vector<double> values) {
    if (values.empty()) return {};
    std::ranges::sort(values);
    // Returns the smallest value that at least `part` of all values do not exceed.
    const auto at = [&](double part) {
        const double rank = std::ceil(part * static_cast<double>(values.size()));
        return values[std::max<std::size_t>(static_cast<std::size_t>(rank), 1) - 1];
    };
    double sum = 0;
    for (const double value : values) sum += value;
    return {.mean = sum / static_cast<double>(values.size()),
            .p50 = at(0.5),
            .p90 = at(0.9),
            .p99 = at(0.99),
            .least = values.front(),
            .most = values.back()};
}

Spread spread(std::span<const double> values) {
    if (values.empty()) return {};
    Spread found{.least = std::ranges::min(values), .most = std::ranges::max(values)};
    for (const double value : values) found.mean += value / static_cast<double>(values.size());
    double squares = 0;
    for (const double value : values) squares += (value - found.mean) * (value - found.mean);
    if (values.size() > 1) found.deviation = std::sqrt(squares / static_cast<double>(values.size() - 1));
    return found;
}

Summary summarise(const Workload& workload, const SimulationOutcome& outcome, std::uint32_t gpus,
                  MeasuredJobs measured) {
    Summary summary;
    summary.jobs = outcome.jobs.size();
    std::vector<double> jct_s;
    std::vector<double> queueing_s;
    std::vector<double> fairness;
    double useful_s = 0;
    double allocated_s = 0;
    double last_s = 0;
    double asked_gpu_s = 0;
    double value = 0;
    double value_most = 0;
    const double first_s = workload.jobs.empty() ? 0 : workload.jobs.front().submit_s;
    for (std::size_t j = 0; j < outcome.jobs.size(); ++j) {
        const JobSpec& spec = workload.jobs[j];
        const JobOutcome& job = outcome.jobs[j];
        useful_s += job.useful_gpu_s;
        allocated_s += job.allocated_gpu_s;
        summary.read_bytes += job.read_bytes;
        summary.remote_bytes += job.remote_bytes;
        summary.preemptions += job.preemptions;
        summary.failures += job.failures;
        if (spec.deadline_s != kNever) {
            const bool missed = !(job.finish_s <= spec.deadline_s);
            ++summary.deadlines;
            if (missed) ++summary.deadlines_missed;
            if (spec.service == ServiceClass::strict_deadline) {
                ++summary.strict_deadlines;
                if (missed) ++summary.strict_missed;
            }
            value += value_of_end(spec, job.finish_s);
            value_most += value_of_end(spec, spec.deadline_s);
        }
        if (job.end != JobEnd::rejected) {
            asked_gpu_s += spec.gpus * spec.total_bytes / std::ranges::max(spec.ideal_bytes_per_second);
        }
        if (job.end == JobEnd::rejected) {
            ++summary.rejected;
            if (job.larger_than_cluster) ++summary.larger_than_cluster;
        }
        if (job.end == JobEnd::expired) ++summary.expired;
        if (job.end == JobEnd::unfinished) ++summary.unfinished;
        if (job.end != JobEnd::finished) continue;
        ++summary.finished;
        last_s = std::max(last_s, job.finish_s);
        if (j < measured.begin || j >= measured.end) continue;
        ++summary.measured;
        jct_s.push_back(job.finish_s - spec.submit_s);
        // Sums of many steps differ in their last digits.
        const double queued_s = job.finish_s - spec.submit_s - job.ran_s;
        queueing_s.push_back(queued_s < 1e-6 ? 0 : queued_s);
        if (job.equal_bytes > 0) fairness.push_back(job.read_bytes / job.equal_bytes);
    }
    summary.deadline_value = value_most > 0 ? value / value_most : 0;
    summary.makespan_s = std::max(0.0, last_s - first_s);
    summary.jct_s = quantiles(std::move(jct_s));
    summary.queueing_s = quantiles(std::move(queueing_s));
    summary.fairness = quantiles(std::move(fairness));
    summary.tenant_fairness = quantiles(outcome.tenant_ratios);
    const double submitted_s = workload.jobs.empty() ? 0 : workload.jobs.back().submit_s - first_s;
    summary.offered_load = submitted_s > 0 ? asked_gpu_s / (submitted_s * gpus) : 0;
    summary.gpu_utilisation = allocated_s > 0 ? useful_s / allocated_s : 0;
    summary.gpu_allocation = summary.makespan_s > 0 ? allocated_s / (summary.makespan_s * gpus) : 0;
    return summary;
}

}  // namespace larder::scheduler
