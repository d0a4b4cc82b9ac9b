#pragma once

// The simulated data plane: the stores, who reads them, and the plan in force. Between two plans everybody reads at
// constant rates; what changes them by itself (an epoch's end, a store that fills while several read it) is told to the
// caller as a time.

#include <memory>
#include <vector>

#include "scheduler/simulator/running_job.h"

namespace larder::scheduler {

class DataPlane {
public:
    DataPlane(const SimulationOptions& options, std::span<const DatasetState> datasets, std::uint32_t gpus_all);

    // The job has its GPUs and begins to read, or to read on. `users_left`: whether later jobs read the dataset, too.
    void start(SimulatedJob& job, std::uint32_t index);
    void stop(SimulatedJob& job, bool dataset_is_done);
    // Everybody reads for so long. Adds what was read to the jobs and `outcomes`.
    void advance(double seconds, std::span<SimulatedJob* const> running, std::vector<JobOutcome>& outcomes);
    // The job's epoch is over: true if a new plan should be made of what it needs now.
    bool end_epoch(SimulatedJob& job);
    Result<void> plan(std::span<SimulatedJob* const> running);
    // Rates of the jobs that read stores which several fill at a time; true if any changed.
    bool refresh_shared();
    // When that is worth doing again.
    double next_refresh_s(double now_s) const;

    double remote_rate(std::span<SimulatedJob* const> running) const;
    double cached_bytes(std::uint32_t dataset) const;
    double cached_bytes_all() const;
    void describe(std::span<DatasetState> datasets) const;

private:
    Store& store_for(const SimulatedJob& job);

    const SimulationOptions& options_;
    std::span<const DatasetState> datasets_;
    std::uint32_t gpus_all_;
    std::unique_ptr<CacheSystem> system_;
    std::uint64_t starts_ = 0;
    std::vector<std::unique_ptr<Store>> stores_;  // by dataset and, per job, by start
    std::vector<Store*> by_dataset_;
    // Of one plan, kept for their memory.
    std::vector<Reader*> readers_;
    std::vector<std::uint32_t> gpus_;
    std::vector<Store*> planned_;
    std::vector<double> read_;
};

}  // namespace larder::scheduler
