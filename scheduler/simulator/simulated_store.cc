#include "scheduler/simulator/simulated_store.h"

#include <algorithm>

#include "allocator/model.h"
#include "base/assert.h"

namespace larder::scheduler {

double rest_hit_ratio(const SimulatedReader& reader) {
    if (!(reader.unread_bytes > 0)) return 0;
    constexpr double kRounding = 1e-9;
    const double ratio = reader.unread_cached_bytes / reader.unread_bytes;
    return ratio > 1 - kRounding ? 1 : ratio;
}

void set_rate(SimulatedReader& reader) {
    const double ideal = std::min(reader.ideal, reader.cap);
    if (!reads_hits_first(reader)) {
        reader.rate = allocator::predicted_rate(ideal, reader.bandwidth, reader.hit_ratio);
        return;
    }
    reader.rate = ideal;
    reader.hit_ratio = std::max(reader.hit_ratio, 1 - reader.bandwidth / ideal);
}

void advance(Store& store, std::span<const double> read) {
    LARDER_ASSERT(read.size() == store.readers.size());
    double missed = 0;
    for (std::size_t i = 0; i < read.size(); ++i) {
        SimulatedReader& reader = *store.readers[i];
        const double bytes = std::min(read[i], reader.unread_bytes);
        missed += bytes * (1 - reader.hit_ratio) * reader.fetch_part;
        reader.unread_bytes -= bytes;
        reader.unread_cached_bytes = std::max(0.0, reader.unread_cached_bytes - bytes * reader.hit_ratio);
    }
    const double admitted = std::min(missed, store.quota_bytes - store.cached_bytes);
    if (!(admitted > 0)) return;
    const double uncached = store.size_bytes - store.cached_bytes;
    store.cached_bytes += admitted;
    if (store.readers.size() == 1) return;
    for (std::size_t i = 0; i < read.size(); ++i) {
        SimulatedReader& reader = *store.readers[i];
        const double own = std::min(read[i], reader.unread_bytes) * (1 - reader.hit_ratio) * reader.fetch_part;
        const double by_others = admitted * std::max(0.0, 1 - own / missed);
        // Blocks admitted by others are a uniform sample of the uncached blocks.
        const double unread = (reader.unread_bytes - reader.unread_cached_bytes) / uncached;
        reader.unread_cached_bytes = std::min({reader.unread_cached_bytes + by_others * std::clamp(unread, 0.0, 1.0),
                                               reader.unread_bytes, store.cached_bytes});
    }
}

void begin_epoch(const Store& store, SimulatedReader& reader, double part) {
    reader.has_read_hits = false;
    reader.unread_bytes = std::min(store.size_bytes * part, reader.remaining_bytes);
    reader.unread_cached_bytes =
        std::min(store.cached_bytes, store.size_bytes) * (reader.unread_bytes / store.size_bytes);
}

void begin_turn(SimulatedReader& reader, double now_s) {
    reader.turn_s = now_s;
    reader.remaining_at_turn_start = reader.remaining_bytes;
}

void end_turn(SimulatedReader& reader, double now_s) {
    const double bytes = std::max(0.0, reader.remaining_at_turn_start - reader.remaining_bytes);
    reader.turns.push_back({.from_s = reader.turn_s, .to_s = now_s, .bytes = bytes});
    // Merge the two turns that are closest in time: when the bytes were read stays precise enough.
    constexpr std::size_t kTurnsMax = 8;
    if (reader.turns.size() <= kTurnsMax) return;
    std::size_t closest = 0;
    double span_s = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i + 1 < reader.turns.size(); ++i) {
        const double age_s = now_s - reader.turns[i].from_s;
        // Relative to age: older turns may be less precise.
        const double relative = (reader.turns[i + 1].to_s - reader.turns[i].from_s) / age_s;
        if (relative >= span_s) continue;
        span_s = relative;
        closest = i;
    }
    const auto second = reader.turns.begin() + static_cast<std::ptrdiff_t>(closest) + 1;
    (second - 1)->to_s = second->to_s;
    (second - 1)->bytes += second->bytes;
    reader.turns.erase(second);
}

void cut_to_quota(Store& store) {
    const double dropped = store.cached_bytes - store.quota_bytes;
    if (!(dropped > 0)) return;
    double read_by_all = store.cached_bytes;
    for (const SimulatedReader* reader : store.readers) {
        read_by_all *= std::clamp(1 - reader->unread_cached_bytes / store.cached_bytes, 0.0, 1.0);
    }
    const double left = store.cached_bytes - read_by_all;
    const double kept = left <= 0 ? 0 : std::clamp(1 - std::max(0.0, dropped - read_by_all) / left, 0.0, 1.0);
    for (SimulatedReader* reader : store.readers) reader->unread_cached_bytes *= kept;
    store.cached_bytes = store.quota_bytes;
}

}  // namespace larder::scheduler
