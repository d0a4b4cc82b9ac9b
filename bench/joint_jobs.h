#pragma once

// The training jobs of the joint bench: each a thread with a feeder and a consumer of rate f*, reading epoch after
// epoch until it has read those it is to read, or is told to stop.

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
#include "tools/cli/interrupt.h"

namespace larder::bench {

// As much as the LRU's. Little beside a dataset, as it is where datasets are large: what is prefetched counts as read.
inline constexpr std::uint32_t kJointPrefetchBlocks = 64;

class JointJobRun {
public:
    using Open = std::function<Result<std::unique_ptr<Feeder>>()>;

    // Opens its feeder in its own thread, and begins. `epochs`: ends after so many; 0: is told to.
    JointJobRun(std::string name, Open open, double ideal_bytes_per_second, std::uint32_t epochs = 0);
    // Stops it.
    ~JointJobRun();
    JointJobRun(const JointJobRun&) = delete;
    JointJobRun& operator=(const JointJobRun&) = delete;

    const std::string& name() const { return name_; }
    std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
    std::uint32_t epochs() const { return epochs_.load(std::memory_order_relaxed); }
    // From when it was made to the end of its last epoch. Once it has been stopped.
    double seconds() const { return seconds_; }
    // Why it ended by itself, if it did.
    Result<void> state() const;
    void stop();

private:
    void run(const Open& open, double ideal_bytes_per_second, std::uint32_t epochs);

    std::string name_;
    std::atomic<std::uint64_t> bytes_{0};
    std::atomic<std::uint32_t> epochs_{0};
    std::atomic<bool> stopping_{false};
    const SteadyClock clock_;
    const std::int64_t made_ns_ = clock_.now_ns();
    double seconds_ = 0;
    mutable std::mutex mutex_;
    Result<void> state_;
    std::thread thread_;
};

using JointRuns = std::vector<std::unique_ptr<JointJobRun>>;

// Jobs read in orders of their own. What one job cached is a random sample to another only if their orders differ.
std::uint64_t seed_of(const JointJob& job);

// Reads through the daemon on `socket`.
std::unique_ptr<JointJobRun> run_on_larder(const JointScenario& scenario, const JointJob& job,
                                           const std::string& socket, std::uint32_t epochs = 0);

// Until every job has read so many epochs; `each` is called many times a second. Ctrl-C is an error.
Result<void> wait_for_epochs(const JointRuns& runs, std::uint32_t epochs, const cli::InterruptWatch& interrupt,
                             const std::function<void()>& each);

// Waits a moment between two looks. Ctrl-C is an error, and what a job ended with.
Result<void> pause_between_looks(const JointRuns& runs, const cli::InterruptWatch& interrupt);

}  // namespace larder::bench
