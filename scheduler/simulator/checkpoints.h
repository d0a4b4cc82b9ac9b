#pragma once

// Simulates checkpoint transfers. They have a bandwidth of their own or a part of the remote's, shared equally by all
// transfers in flight. A
// preempted job writes a checkpoint before it may start again, and reads it when it starts. A running job writes a
// checkpoint every interval, without stopping its training, and goes back to its last complete one when its node is
// lost.

#include <cstdint>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/job_spec.h"

namespace larder::scheduler {

struct CheckpointOptions {
    double bytes_per_second = kNever;
    double interval_s = 1800;
    bool jobs_may_be_lost = false;  // if false, checkpoints that take no time are not tracked
};

class Checkpoints {
public:
    Checkpoints(const CheckpointOptions& options, std::size_t jobs);

    // True if a checkpoint of this size takes any time to transfer.
    bool take_time(double bytes) const { return bytes > 0 && options_.bytes_per_second < kNever; }

    std::size_t in_flight() const { return transfers_.size(); }
    // Sets the bandwidth of all transfers together, from now on; above 0.
    void set_bandwidth(double bytes_per_second) { options_.bytes_per_second = bytes_per_second; }

    // Starts to write or read a checkpoint. The job stands still until the transfer ends.
    void begin_transfer(std::uint32_t job, double bytes);
    // Records that the job runs from now on, with `remaining_bytes` to read. Its checkpoints have `bytes`.
    void note_start(std::uint32_t job, double bytes, double remaining_bytes, double now_s);
    // Records that the job has stopped: cancels its transfers and its next checkpoint.
    void note_stop(std::uint32_t job);

    // Returns when the next transfer ends or the next checkpoint is due.
    double next_s(double now_s) const;
    // Advances all transfers. Returns the jobs that stood still for a transfer that ended, in the order of the
    // transfers' starts.
    std::vector<std::uint32_t> advance(double seconds);
    // Returns the jobs whose periodic checkpoint is due. The caller must call `write` for each of them.
    std::vector<std::uint32_t> due(double now_s) const;
    void write(std::uint32_t job, double remaining_bytes, double now_s);

    // Records the checkpoints that take no time and are due by `until_s`. `remaining_bytes` returns a job's remaining
    // bytes at a time.
    void note_instant(double until_s, const std::function<double(std::uint32_t job, double at_s)>& remaining_bytes);

    // Returns the bytes that the job has to read after it goes back to its last complete checkpoint.
    double remaining_bytes(std::uint32_t job) const { return jobs_[job].saved_remaining_bytes; }

private:
    struct Transfer {
        std::uint32_t job = 0;
        double bytes_left = 0;
        bool stands_still = false;
    };
    struct JobCheckpoint {
        double bytes = 0;
        double due_s = kNever;
        double saved_remaining_bytes = 0;
        double written_remaining_bytes = 0;  // of the checkpoint being written
    };
    double bytes_per_second_each() const { return options_.bytes_per_second / static_cast<double>(transfers_.size()); }
    void set_due(std::uint32_t job, double due_s);

    CheckpointOptions options_;
    std::vector<JobCheckpoint> jobs_;
    std::vector<Transfer> transfers_;
    std::set<std::pair<double, std::uint32_t>> due_;          // (due_s, job) of checkpoints that take time
    std::set<std::pair<double, std::uint32_t>> instant_due_;  // (due_s, job) of checkpoints that take no time
};

}  // namespace larder::scheduler
