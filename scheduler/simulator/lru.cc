#include <algorithm>

#include "allocator/model.h"
#include "scheduler/simulator/cache_system.h"

namespace larder::scheduler {

// The window begins at a uniform place in an epoch; the part a of the epoch that is over when the window ends is
// uniform on [0, 1]. Up to one epoch's length x, the window has x if a >= x, else a of this epoch and of the one before
// a part x - a that overlaps it by chance: the mean is x - x^3/6. Up to two, it has everything where a <= x - 1.
double distinct_part(double epochs) {
    const double x = epochs;
    if (x >= 2) return 1;
    if (x <= 1) return x - x * x * x / 6;
    const double whole = x - 1;
    return whole + x * (1 - whole) - x * (1 - whole * whole) / 2 + (1 - whole * whole * whole) / 3;
}

namespace {

// The part of a store's dataset that is cached when blocks stay for so long after they were read.
double cached_part(const Store& store, double stay_s) {
    double absent = 1;
    for (const Reader* reader : store.readers) absent *= 1 - distinct_part(reader->rate * stay_s / store.size_bytes);
    return 1 - absent;
}

}  // namespace

void set_lru_hits(std::span<Store* const> stores, double cache_bytes) {
    double size = 0;
    double slowest_s = 0;
    for (const Store* store : stores) {
        if (store->readers.empty()) continue;
        size += store->size_bytes;
        for (const Reader* reader : store->readers) {
            if (reader->rate > 0) slowest_s = std::max(slowest_s, 2 * store->size_bytes / reader->rate);
        }
    }
    double stay_s = slowest_s;
    if (size > cache_bytes) {
        double low = 0;
        double high = slowest_s;
        constexpr int kHalvings = 40;
        for (int i = 0; i < kHalvings; ++i) {
            stay_s = (low + high) / 2;
            double cached = 0;
            for (const Store* store : stores) cached += store->size_bytes * cached_part(*store, stay_s);
            (cached > cache_bytes ? high : low) = stay_s;
        }
    }
    for (Store* store : stores) {
        store->cached_bytes = store->readers.empty() ? 0 : store->size_bytes * cached_part(*store, stay_s);
        for (Reader* reader : store->readers) {
            const double own = distinct_part(reader->rate * stay_s / store->size_bytes);
            double missed = reader->first_epoch ? 1 : 1 - allocator::lru_hit_ratio(own);
            for (const Reader* other : store->readers) {
                if (other != reader) missed *= 1 - distinct_part(other->rate * stay_s / store->size_bytes);
            }
            reader->hit_ratio = std::clamp(1 - missed, 0.0, 1.0);
        }
    }
}

}  // namespace larder::scheduler
