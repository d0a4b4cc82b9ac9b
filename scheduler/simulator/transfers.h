#pragma once

// Checkpoints on their way: a bandwidth class of its own, shared equally by all that are written or read at a time.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "scheduler/job.h"

namespace larder::scheduler {

class CheckpointTransfers {
public:
    explicit CheckpointTransfers(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

    void begin(std::uint32_t job, double bytes) { transfers_.push_back({.job = job, .bytes_left = bytes}); }
    void cancel(std::uint32_t job) {
        std::erase_if(transfers_, [&](const Transfer& transfer) { return transfer.job == job; });
    }
    double next_s(double now_s) const {
        double least = kNever;
        for (const Transfer& transfer : transfers_) least = std::min(least, transfer.bytes_left);
        return transfers_.empty() ? kNever : now_s + least / each();
    }
    // Those that are done by then, in the order they began.
    std::vector<std::uint32_t> advance(double seconds) {
        std::vector<std::uint32_t> done;
        if (transfers_.empty()) return done;
        const double moved = each() * seconds;
        std::erase_if(transfers_, [&](Transfer& transfer) {
            transfer.bytes_left -= moved;
            const bool ends = transfer.bytes_left <= 1e-3;
            if (ends) done.push_back(transfer.job);
            return ends;
        });
        return done;
    }

private:
    struct Transfer {
        std::uint32_t job = 0;
        double bytes_left = 0;
    };
    double each() const { return bytes_per_second_ / static_cast<double>(transfers_.size()); }

    double bytes_per_second_;
    std::vector<Transfer> transfers_;
};

}  // namespace larder::scheduler
