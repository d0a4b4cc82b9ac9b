#pragma once

// The batches that a training loop lately took, each with the wait before it. Lies in memory that processes share: one
// writer; readers copy entries and check each. Times are CLOCK_MONOTONIC's. Batches taken in one slot of time share an
// entry, so the log goes back almost two seconds at least, however small the batches are. No call waits or allocates.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace larder::protocol {

struct TakeLog {
    static constexpr std::size_t kEntries = 224;
    static constexpr int kSlotBits = 23;  // a slot has 2^23 ns

    // The wait of a batch, perhaps of no length. In an entry of several batches, the wait begins with the first one's
    // and is as long as all of them. So ranks that wait at the same time have entries at the same time.
    struct Entry {
        std::atomic<std::int64_t> begin_ns;
        std::atomic<std::int64_t> end_ns;
    };

    std::atomic<std::uint64_t> count;  // of all entries ever; entry i is at i % kEntries
    Entry entries[kEntries];

    void add(std::int64_t begin_ns, std::int64_t end_ns) {
        const std::uint64_t last = count.load(std::memory_order_relaxed);
        if (last > 0) {
            Entry& before = entries[(last - 1) % kEntries];
            if (before.begin_ns.load(std::memory_order_relaxed) >> kSlotBits == begin_ns >> kSlotBits) {
                const std::int64_t waited_until_ns = before.end_ns.load(std::memory_order_relaxed);
                before.end_ns.store(waited_until_ns + (end_ns - begin_ns), std::memory_order_release);
                return;
            }
        }
        put(last, begin_ns, end_ns);
    }
    // Takes over the entries from `first` on, of those that the other log still has. Returns the number of the last
    // entry, which the other log may still change.
    std::uint64_t copy_from(const TakeLog& other, std::uint64_t first) {
        const std::uint64_t end = other.count.load(std::memory_order_acquire);
        for (std::uint64_t i = std::max(first, end - std::min<std::uint64_t>(end, kEntries)); i < end; ++i) {
            const Entry& entry = other.entries[i % kEntries];
            put(i, entry.begin_ns.load(std::memory_order_relaxed), entry.end_ns.load(std::memory_order_relaxed));
        }
        return end - std::min<std::uint64_t>(end, 1);
    }

private:
    void put(std::uint64_t number, std::int64_t begin_ns, std::int64_t end_ns) {
        Entry& entry = entries[number % kEntries];
        entry.begin_ns.store(begin_ns, std::memory_order_relaxed);
        entry.end_ns.store(end_ns, std::memory_order_relaxed);
        count.store(number + 1, std::memory_order_release);
    }
};

}  // namespace larder::protocol
