#include "tests/campaign/seeds/bandwidth.h"

#include <algorithm>

namespace larder::campaign {

void Bandwidth::sample(double allowed_bytes_per_second) {
    const std::int64_t now_ns = events_.now_ns();
    if (!samples_.empty()) {
        const double passed_s = static_cast<double>(now_ns - samples_.back().time_ns) * 1e-9;
        allowed_bytes_ += passed_s * std::max(last_rate_, allowed_bytes_per_second);
    }
    last_rate_ = allowed_bytes_per_second;
    samples_.push_back({now_ns, taken_bytes_, allowed_bytes_, buckets_ended_});
    const std::size_t last = samples_.size() - 1;
    // Windows of 1, 2, 4, ... samples, and all of them.
    for (std::size_t length = 1;; length *= 2) {
        const std::size_t first = length < last ? last - length : 0;
        const Sample& from = samples_[first];
        // Every bucket that had not ended when the window began may have been full then, or was made later.
        const double bursts =
            static_cast<double>(burst_bytes_) * static_cast<double>(buckets_made_ - from.buckets_ended);
        const double taken = taken_bytes_ - from.taken_bytes;
        const double most = allowed_bytes_ - from.allowed_bytes + bursts;
        if (taken > most * 1.001 + 1) {
            return events_.fail("the nodes took " + std::to_string(static_cast<std::uint64_t>(taken)) + " bytes in " +
                                std::to_string(static_cast<double>(now_ns - from.time_ns) * 1e-9) + " s, but at most " +
                                std::to_string(static_cast<std::uint64_t>(most)) + " were allowed");
        }
        if (first == 0) break;
    }
}

}  // namespace larder::campaign
