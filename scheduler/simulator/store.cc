#include "scheduler/simulator/store.h"

#include <algorithm>

#include "base/assert.h"

namespace larder::scheduler {

double rest_hit_ratio(const Reader& reader) {
    if (!(reader.unread_bytes > 0)) return 0;
    constexpr double kRounding = 1e-9;
    const double ratio = reader.unread_cached_bytes / reader.unread_bytes;
    return ratio > 1 - kRounding ? 1 : ratio;
}

void advance(Store& store, std::span<const double> read) {
    LARDER_ASSERT(read.size() == store.readers.size());
    double missed = 0;
    for (std::size_t i = 0; i < read.size(); ++i) {
        Reader& reader = *store.readers[i];
        const double bytes = std::min(read[i], reader.unread_bytes);
        missed += bytes * (1 - reader.hit_ratio);
        reader.unread_bytes -= bytes;
        reader.unread_cached_bytes = std::max(0.0, reader.unread_cached_bytes - bytes * reader.hit_ratio);
    }
    const double admitted = std::min(missed, store.quota_bytes - store.cached_bytes);
    if (!(admitted > 0)) return;
    const double uncached = store.size_bytes - store.cached_bytes;
    store.cached_bytes += admitted;
    if (store.readers.size() == 1) return;
    for (std::size_t i = 0; i < read.size(); ++i) {
        Reader& reader = *store.readers[i];
        const double own = std::min(read[i], reader.unread_bytes) * (1 - reader.hit_ratio);
        const double by_others = admitted * std::max(0.0, 1 - own / missed);
        // What others admit is a uniform sample of what was not cached.
        const double unread = (reader.unread_bytes - reader.unread_cached_bytes) / uncached;
        reader.unread_cached_bytes = std::min({reader.unread_cached_bytes + by_others * std::clamp(unread, 0.0, 1.0),
                                               reader.unread_bytes, store.cached_bytes});
    }
}

void begin_epoch(const Store& store, Reader& reader, double part) {
    reader.unread_bytes = std::min(store.size_bytes * part, reader.remaining_bytes);
    reader.unread_cached_bytes =
        std::min(store.cached_bytes, store.size_bytes) * (reader.unread_bytes / store.size_bytes);
}

void cut_to_quota(Store& store) {
    const double dropped = store.cached_bytes - store.quota_bytes;
    if (!(dropped > 0)) return;
    double read_by_all = store.cached_bytes;
    for (const Reader* reader : store.readers) {
        read_by_all *= std::clamp(1 - reader->unread_cached_bytes / store.cached_bytes, 0.0, 1.0);
    }
    const double left = store.cached_bytes - read_by_all;
    const double kept = left <= 0 ? 0 : std::clamp(1 - std::max(0.0, dropped - read_by_all) / left, 0.0, 1.0);
    for (Reader* reader : store.readers) reader->unread_cached_bytes *= kept;
    store.cached_bytes = store.quota_bytes;
}

}  // namespace larder::scheduler
