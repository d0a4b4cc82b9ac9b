#pragma once

// Samples of the cluster's state, at equal intervals over the trace and beyond.

#include <algorithm>
#include <functional>
#include <numeric>

#include "scheduler/simulator/data_plane.h"

namespace larder::scheduler {

class Timeline {
public:
    Timeline(const SimulationOptions& options, const Workload& workload, SimulationOutcome& outcome)
        : outcome_(outcome) {
        const double length_s = workload.jobs.empty() ? 0 : workload.jobs.back().submit_s;
        double work_s = 0;
        for (const JobSpec& job : workload.jobs)
            work_s = std::max(work_s, job.total_bytes / std::ranges::max(job.ideal_bytes_per_second));
        every_s_ = options.samples == 0 ? kNever : std::max(1.0, (length_s + work_s) / options.samples);
        next_s_ = options.samples == 0 ? kNever : 0;
        constexpr std::size_t kDatasetsMax = 8;
        std::vector<std::uint32_t>& datasets = outcome_.sampled_datasets;
        datasets.resize(workload.datasets.size());
        std::iota(datasets.begin(), datasets.end(), 0);
        if (datasets.size() <= kDatasetsMax) return;
        std::ranges::stable_sort(datasets, std::ranges::greater{},
                                 [&](std::uint32_t d) { return workload.datasets[d].size_bytes; });
        datasets.resize(kDatasetsMax - 1);
        outcome_.others_sampled = true;
    }

    // Takes the samples that are due before `until_s`, of the state that has held since `from_s`.
    void take(double from_s, double until_s, std::span<SimulatedJob* const> running, std::size_t waiting,
              const DataPlane& data) {
        next_s_ = std::max(next_s_, from_s);
        if (next_s_ >= until_s) return;
        TimelineSample sample{.at_s = next_s_,
                              .running = static_cast<std::uint32_t>(running.size()),
                              .waiting = static_cast<std::uint32_t>(waiting),
                              .remote_bytes_per_second = data.remote_rate(running),
                              .cached_bytes_all = data.cached_bytes_all()};
        sample.dataset_bytes_per_second.resize(outcome_.sampled_datasets.size());
        for (const SimulatedJob* job : running) {
            const double gpus = job->state.gpus;
            if (job->state.packed_with == nullptr) sample.gpus_allocated += gpus;
            if (job->ideal_rate_unshared > 0) sample.gpus_useful += gpus * job->reader.rate / job->ideal_rate_unshared;
            const auto dataset = std::ranges::find(outcome_.sampled_datasets, job->state.spec->dataset);
            if (dataset == outcome_.sampled_datasets.end()) continue;
            sample.dataset_bytes_per_second[dataset - outcome_.sampled_datasets.begin()] += remote_rate(job->reader);
        }
        for (const std::uint32_t dataset : outcome_.sampled_datasets)
            sample.cached_bytes.push_back(data.cached_bytes(dataset));
        if (outcome_.others_sampled) {
            add_rest(sample.cached_bytes, sample.cached_bytes_all);
            add_rest(sample.dataset_bytes_per_second, sample.remote_bytes_per_second);
        }
        for (; next_s_ < until_s; next_s_ += every_s_) {
            sample.at_s = next_s_;
            outcome_.timeline.push_back(sample);
        }
    }

private:
    static void add_rest(std::vector<double>& parts, double all) {
        parts.push_back(std::max(0.0, all - std::accumulate(parts.begin(), parts.end(), 0.0)));
    }

    SimulationOutcome& outcome_;
    double every_s_ = 1;
    double next_s_ = 0;
};

}  // namespace larder::scheduler
