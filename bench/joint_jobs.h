#pragma once

// The training jobs of the joint bench. Each is a thread with a feeder and a consumer of rate f*, which reads its
// epochs until it is done or is stopped.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "bench/feeder.h"
#include "bench/joint_scenario.h"
#include "bench/lru_feeder.h"
#include "tools/cli/interrupt.h"

namespace larder::bench {

// As many blocks as LruFeeder prefetches by default. They must be few compared with a dataset, because prefetched bytes
// count as read.
inline constexpr std::uint32_t kJointPrefetchBlocks = 64;

class JointJobRun {
public:
    using Open = std::function<Result<std::unique_ptr<Feeder>>()>;

    // Opens the feeder in its own thread and begins. `epochs`: the number to read; 0: until stopped.
    JointJobRun(std::string name, Open open, double ideal_bytes_per_second, std::uint32_t epochs = 0);
    // Stops the job.
    ~JointJobRun();
    JointJobRun(const JointJobRun&) = delete;
    JointJobRun& operator=(const JointJobRun&) = delete;

    const std::string& name() const { return name_; }
    std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
    std::uint32_t epochs() const { return epochs_.load(std::memory_order_relaxed); }
    // The time from construction to the end of the last epoch. Call once the job has stopped.
    double seconds() const { return seconds_; }
    // The error that ended the job, if any.
    Result<void> state() const;
    void stop();

private:
    void run(const Open& open, double ideal_bytes_per_second, std::uint32_t epochs);

    std::string name_;
    std::atomic<std::uint64_t> bytes_{0};
    std::atomic<std::uint32_t> epochs_{0};
    std::atomic<bool> stopping_{false};
    const SteadyClock clock_;
    const std::int64_t constructed_ns_ = clock_.now_ns();
    double seconds_ = 0;
    mutable std::mutex mutex_;
    Result<void> state_;
    std::thread thread_;
};

using JointRuns = std::vector<std::unique_ptr<JointJobRun>>;

// Returns a job's seed. Each job must read in an order of its own: only then are the blocks that one job caches a
// random sample for another.
std::uint64_t seed_of(const JointJob& job);

// Returns how a job reads with an LRU cache in `store`, without a limit of its rate.
LruOptions lru_options(const JointScenario& scenario, const JointJob& job, const FileSet& files,
                       std::shared_ptr<LruStore> store);

// Runs a job that reads through the daemon on `socket`.
std::unique_ptr<JointJobRun> run_on_larder(const JointScenario& scenario, const JointJob& job,
                                           const std::string& socket, std::uint32_t epochs = 0);

// Waits until every job has read this many epochs; `on_poll` is called many times a second. Ctrl-C is an error.
Result<void> wait_for_epochs(const JointRuns& runs, std::uint32_t epochs, const cli::InterruptWatch& interrupt,
                             const std::function<void()>& on_poll);

// Waits a moment between two polls. Ctrl-C and a job's error are errors.
Result<void> pause_between_polls(const JointRuns& runs, const cli::InterruptWatch& interrupt);

}  // namespace larder::bench
