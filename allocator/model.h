#pragma once

// The performance model's formulas, one line each.

#include <algorithm>
#include <cmath>

#include "allocator/state.h"

namespace larder::allocator {

// f = min(f*, b / (1 - h)): every miss comes from the remote at b (SiloD, EuroSys '23, equation 1).
inline double predicted_rate(double ideal, double bandwidth, double hit_ratio) {
    const double miss_ratio = 1 - hit_ratio;
    return miss_ratio <= 0 ? ideal : std::min(ideal, bandwidth / miss_ratio);
}

inline double hit_ratio(double cached_bytes, double size_bytes) {
    return size_bytes <= 0 ? 1 : std::min(1.0, cached_bytes / size_bytes);
}

// The hit ratio of an LRU cache that holds the part k of a dataset, which is read in a fresh random order each epoch:
// k + (1-k) ln(1-k).
inline double lru_hit_ratio(double cached_part) {
    return cached_part >= 1 ? 1 : cached_part + (1 - cached_part) * std::log1p(-cached_part);
}

// Returns the expected hit ratio of the bytes the job reads next: in the rest of its epoch, the cached part of the
// bytes it has not read; after the epoch, the dataset's hit ratio. `horizon_bytes` is how far to look ahead if the
// epoch ends before that. The result never exceeds the hit ratio of the rest of the epoch: later hits do not help to
// reach its end, and with less bandwidth than the rest needs, the end would move away with every new plan.
inline double effective_hit_ratio(const ClusterJob& job, double dataset_hit_ratio, double horizon_bytes) {
    if (job.unread_bytes == 0) return dataset_hit_ratio;
    const auto unread = static_cast<double>(job.unread_bytes);
    const auto cached = static_cast<double>(job.unread_cached_bytes);
    const double after = std::max(0.0, horizon_bytes - unread);
    const double looking_ahead = (cached + after * dataset_hit_ratio) / (unread + after);
    return std::min({1.0, cached / unread, looking_ahead});
}

// The parts of a job's remaining reads of a block that hit. With endless epochs both are 1.
struct CacheGains {
    double of_kept = 1;   // of a block that is cached now
    double of_added = 1;  // of a block that is cached when the job reads it next
};

// `cached_part` is the part of the dataset that is cached, and `unread_part` the part that the job has yet to read in
// this epoch, with this hit ratio. `epochs_after` follow.
inline CacheGains cache_gains(double cached_part, double unread_part, double unread_hit_ratio, double epochs_after) {
    if (std::isinf(epochs_after)) return {};
    const double reads = unread_part + epochs_after;
    if (reads <= 0) return {.of_kept = 0, .of_added = 0};
    const double hits_in_epoch = cached_part > 0 ? std::min(1.0, unread_hit_ratio * unread_part / cached_part) : 0;
    // A block is read next in this epoch or in the one after it, and hits from then on.
    const double hits_of_added = unread_part * epochs_after + (1 - unread_part) * std::max(0.0, epochs_after - 1);
    return {.of_kept = std::min(1.0, (hits_in_epoch + epochs_after) / reads), .of_added = hits_of_added / reads};
}

}  // namespace larder::allocator
