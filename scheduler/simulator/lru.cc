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

// Estimates what is cached if blocks stay for a time after they were read.
struct LruView {
    double now_s = 0;
    bool follows_epochs = false;

    double recently_read_bytes(const SimulatedReader& reader, bool runs, double seconds) const;
    double distinct_read_part(const Store& store, const SimulatedReader& reader, bool runs, double seconds) const;
    double own_hit_ratio(const Store& store, const SimulatedReader& reader, double stay_s) const;
    double cached_part(const Store& store, double stay_s) const;
    double longest_stay_s(const Store& store) const;
};

// Returns the part of the current epoch that the reader has read.
double epoch_part(const Store& store, const SimulatedReader& reader) {
    return 1 - reader.unread_bytes / store.size_bytes;
}

// Returns the bytes that the reader read in the last `seconds`, in this turn and in earlier ones. A reader that was
// never stopped counts as having read forever, unless it is followed through its epochs.
double LruView::recently_read_bytes(const SimulatedReader& reader, bool runs, double seconds) const {
    if (runs && reader.turns.empty() && !follows_epochs) return reader.rate * seconds;
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
double LruView::distinct_read_part(const Store& store, const SimulatedReader& reader, bool runs, double seconds) const {
    const double epochs = recently_read_bytes(reader, runs, seconds) / store.size_bytes;
    if (!follows_epochs) return distinct_part(epochs);
    // Reads of the epoch before and reads of the current one cover the same blocks by chance.
    const double current = epoch_part(store, reader);
    if (epochs <= current) return epochs;
    return std::min(1.0, current + (epochs - current) * (1 - current));
}

// Returns the part of the reader's next reads for which the block is cached since its own last epoch.
double LruView::own_hit_ratio(const Store& store, const SimulatedReader& reader, double stay_s) const {
    if (reader.first_epoch) return 0;
    if (!follows_epochs) return allocator::lru_hit_ratio(distinct_read_part(store, reader, true, stay_s));
    // The block was read at any place of the reader's last epoch with equal chance.
    const double epochs = recently_read_bytes(reader, true, stay_s) / store.size_bytes;
    return std::clamp(epochs - epoch_part(store, reader), 0.0, 1.0);
}

// Returns the part of the store's dataset that is cached if blocks stay for `stay_s` after they were read.
double LruView::cached_part(const Store& store, double stay_s) const {
    double absent = 1;
    for (const SimulatedReader* reader : store.readers) absent *= 1 - distinct_read_part(store, *reader, true, stay_s);
    for (const SimulatedReader* reader : store.paused) absent *= 1 - distinct_read_part(store, *reader, false, stay_s);
    return 1 - absent;
}

// Returns the longest time that a cached block can have been in the cache.
double LruView::longest_stay_s(const Store& store) const {
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

void set_lru_hits(std::span<Store* const> stores, double cache_bytes, double now_s, bool follows_epochs) {
    const LruView view{.now_s = now_s, .follows_epochs = follows_epochs};
    double size = 0;
    double longest_s = 0;
    for (const Store* store : stores) {
        if (store->readers.empty() && store->paused.empty()) continue;
        size += store->size_bytes;
        longest_s = std::max(longest_s, view.longest_stay_s(*store));
    }
    double stay_s = longest_s;
    if (size > cache_bytes) {
        double low = 0;
        double high = longest_s;
        constexpr int kHalvings = 40;
        for (int i = 0; i < kHalvings; ++i) {
            stay_s = (low + high) / 2;
            double cached = 0;
            for (const Store* store : stores) cached += store->size_bytes * view.cached_part(*store, stay_s);
            (cached > cache_bytes ? high : low) = stay_s;
        }
    }
    for (Store* store : stores) {
        store->cached_bytes = store->size_bytes * view.cached_part(*store, stay_s);
        double unread_by_paused = 1;  // the part that no waiting job has read
        for (const SimulatedReader* reader : store->paused)
            unread_by_paused *= 1 - view.distinct_read_part(*store, *reader, false, stay_s);
        for (SimulatedReader* reader : store->readers) {
            double missed = unread_by_paused * (1 - view.own_hit_ratio(*store, *reader, stay_s));
            for (const SimulatedReader* other : store->readers) {
                if (other != reader) missed *= 1 - view.distinct_read_part(*store, *other, true, stay_s);
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
