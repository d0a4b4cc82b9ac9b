#include <algorithm>

#include "allocator/model.h"
#include "scheduler/simulator/cache_system.h"

namespace larder::scheduler {

// At the window's end a part `a` of the current epoch is over; `a` is uniform on [0, 1]. For x <= 1 the window covers x
// if a >= x. Else it covers `a` of this epoch and x - a of the one before, which overlap by chance. The mean is x -
// x^3/6. For x <= 2 the window covers everything if a <= x - 1.
double distinct_part(double epochs) {
    const double x = epochs;
    if (x >= 2) return 1;
    if (x <= 1) return x - x * x * x / 6;
    const double whole = x - 1;
    return whole + x * (1 - whole) - x * (1 - whole * whole) / 2 + (1 - whole * whole * whole) / 3;
}

namespace {

// Returns the bytes that the reader read in the last `seconds`, in this turn and in earlier ones. A reader that was
// never stopped counts as having read forever.
double recently_read_bytes(const SimulatedReader& reader, bool runs, double seconds, double now_s) {
    if (runs && reader.turns.empty()) return reader.rate * seconds;
    const double since_s = now_s - seconds;
    double bytes = runs ? reader.rate * std::min(seconds, now_s - reader.turn_s) : 0;
    for (const ReadTurn& turn : reader.turns) {
        if (turn.to_s <= since_s) continue;
        const double length_s = turn.to_s - turn.from_s;
        const double part = length_s > 0 ? std::min(1.0, (turn.to_s - since_s) / length_s) : 1;
        bytes += turn.bytes * part;
    }
    return bytes;
}

// Returns the part of the store's dataset that the reader read in the last `seconds`.
double distinct_read_part(const Store& store, const SimulatedReader& reader, bool runs, double seconds, double now_s) {
    return distinct_part(recently_read_bytes(reader, runs, seconds, now_s) / store.size_bytes);
}

// Returns the part of the store's dataset that is cached if blocks stay for `stay_s` after they were read.
double cached_part(const Store& store, double stay_s, double now_s) {
    double absent = 1;
    for (const SimulatedReader* reader : store.readers)
        absent *= 1 - distinct_read_part(store, *reader, true, stay_s, now_s);
    for (const SimulatedReader* reader : store.paused)
        absent *= 1 - distinct_read_part(store, *reader, false, stay_s, now_s);
    return 1 - absent;
}

// Returns the longest time that a cached block can have been in the cache.
double longest_stay_s(const Store& store, double now_s) {
    double longest_s = 0;
    for (const SimulatedReader* reader : store.readers) {
        if (reader->rate > 0) longest_s = std::max(longest_s, 2 * store.size_bytes / reader->rate);
        if (!reader->turns.empty()) longest_s = std::max(longest_s, now_s - reader->turns.front().from_s);
    }
    for (const SimulatedReader* reader : store.paused)
        longest_s = std::max(longest_s, now_s - reader->turns.front().from_s);
    return longest_s;
}

}  // namespace

void set_lru_hits(std::span<Store* const> stores, double cache_bytes, double now_s) {
    double size = 0;
    double longest_s = 0;
    for (const Store* store : stores) {
        if (store->readers.empty() && store->paused.empty()) continue;
        size += store->size_bytes;
        longest_s = std::max(longest_s, longest_stay_s(*store, now_s));
    }
    double stay_s = longest_s;
    if (size > cache_bytes) {
        double low = 0;
        double high = longest_s;
        constexpr int kHalvings = 40;
        for (int i = 0; i < kHalvings; ++i) {
            stay_s = (low + high) / 2;
            double cached = 0;
            for (const Store* store : stores) cached += store->size_bytes * cached_part(*store, stay_s, now_s);
            (cached > cache_bytes ? high : low) = stay_s;
        }
    }
    for (Store* store : stores) {
        store->cached_bytes = store->size_bytes * cached_part(*store, stay_s, now_s);
        double unread_by_paused = 1;  // the part that no waiting job has read
        for (const SimulatedReader* reader : store->paused)
            unread_by_paused *= 1 - distinct_read_part(*store, *reader, false, stay_s, now_s);
        for (SimulatedReader* reader : store->readers) {
            const double own = distinct_read_part(*store, *reader, true, stay_s, now_s);
            double missed = unread_by_paused * (reader->first_epoch ? 1 : 1 - allocator::lru_hit_ratio(own));
            for (const SimulatedReader* other : store->readers) {
                if (other != reader) missed *= 1 - distinct_read_part(*store, *other, true, stay_s, now_s);
            }
            reader->hit_ratio = std::clamp(1 - missed, 0.0, 1.0);
        }
    }
}

double next_lru_refresh_s(std::span<const std::unique_ptr<Store>> stores, double now_s) {
    constexpr double kPart = 1.0 / 16;  // of a dataset
    constexpr double kSoonest_s = 300;
    double next_s = kNever;
    for (const auto& store : stores) {
        for (const SimulatedReader* reader : store->readers) {
            if (reader->turns.empty() || !(reader->rate > 0)) continue;
            if (reader->rate * (now_s - reader->turn_s) > 2 * store->size_bytes) continue;
            next_s = std::min(next_s, now_s + std::max(kSoonest_s, kPart * store->size_bytes / reader->rate));
        }
    }
    return next_s;
}

}  // namespace larder::scheduler
