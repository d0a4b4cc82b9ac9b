#pragma once

// Checkpoints on their way: a bandwidth class of its own, shared equally by all that are written or read at a time. A
// job that is stopped for others writes one before it may start again, and reads it when it does; while it runs it
// writes one every interval, beside its training, and goes back to the last whole one when its node is lost.

#include <cstdint>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/job.h"

namespace larder::scheduler {

struct CheckpointOptions {
    double bytes_per_second = kNever;
    double interval_s = 1800;
    bool jobs_may_be_lost = false;  // else nobody asks for what those have that take no time
};

class Checkpoints {
public:
    Checkpoints(const CheckpointOptions& options, std::size_t jobs);

    // Whether one of this size is on its way for any time.
    bool take_time(double bytes) const { return bytes > 0 && options_.bytes_per_second < kNever; }

    // The job stands still until this one is written or read.
    void begin(std::uint32_t job, double bytes);
    // It runs from now on, with so much to read to its end, and its checkpoints are so large.
    void started(std::uint32_t job, double bytes, double remaining_bytes, double now_s);
    // What it was writing is given up.
    void stopped(std::uint32_t job);

    // When something happens next: one has been written or read, or is due.
    double next_s(double now_s) const;
    // The jobs that stood still for what is done by then, in the order it began.
    std::vector<std::uint32_t> advance(double seconds);
    // Jobs that write one now. Each must be told of by `write`.
    std::vector<std::uint32_t> due(double now_s) const;
    void write(std::uint32_t job, double remaining_bytes, double now_s);

    // Those that take no time, and are due until then, are there; `remaining_bytes`: of a job at a time.
    void note(double until_s, const std::function<double(std::uint32_t job, double at_s)>& remaining_bytes);

    // What the job has to read to its end when it goes back to its last whole one.
    double remaining_bytes(std::uint32_t job) const { return jobs_[job].saved_remaining_bytes; }

private:
    struct Transfer {
        std::uint32_t job = 0;
        double bytes_left = 0;
        bool stands_still = false;
    };
    struct OfJob {
        double bytes = 0;
        double due_s = kNever;
        double saved_remaining_bytes = 0;
        double written_remaining_bytes = 0;  // of the one on its way
    };
    double each() const { return options_.bytes_per_second / static_cast<double>(transfers_.size()); }
    void set_due(std::uint32_t job, double due_s);

    CheckpointOptions options_;
    std::vector<OfJob> jobs_;
    std::vector<Transfer> transfers_;
    std::set<std::pair<double, std::uint32_t>> due_;    // that take time
    std::set<std::pair<double, std::uint32_t>> noted_;  // that take none
};

}  // namespace larder::scheduler
