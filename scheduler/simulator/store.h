#pragma once

// What is cached, and what of it each job can still hit: the fluid form of the node cache. A store holds blocks of one
// dataset, a uniform random sample of it, up to its quota (design: uniform caching). Of each reader two counts are
// kept, bytes unread in its epoch and those of them that are cached; their ratio is the exact expected hit ratio of the
// rest of the epoch, so what is admitted during an epoch helps a job only where it has not read yet (delayed
// effectiveness; SiloD, EuroSys '23).

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace larder::scheduler {

inline constexpr std::uint32_t kNoStore = std::numeric_limits<std::uint32_t>::max();
inline constexpr std::uint32_t kAllNodes = std::numeric_limits<std::uint32_t>::max();

// What a job read from one start to the next stop.
struct ReadTurn {
    double from_s = 0;
    double to_s = 0;
    double bytes = 0;
};

// One running job's reading.
struct Reader {
    std::uint32_t job = 0;           // index of the simulation's
    std::uint32_t store = kNoStore;  // index in what is planned
    double weight = 1;
    double ideal = 0;  // f* as things are: GPUs, their places, packing
    double remaining_bytes = 0;
    double unread_bytes = 0;  // of the current epoch
    double unread_cached_bytes = 0;
    bool first_epoch = true;
    std::uint64_t started = 0;  // rank in the order of starts
    double equal_rate = 0;      // e: under an equal share of cache and bandwidth among all readers
    double bandwidth = 0;
    double hit_ratio = 0;
    double rate = 0;
    double cap = std::numeric_limits<double>::infinity();  // what disks and networks of its nodes let it read
    const Reader* whole = nullptr;                         // the job's, of which this one is the part of a node
    // Its turns before this one, the oldest first; none: it was never stopped.
    std::vector<ReadTurn> turns{};
    double turn_s = 0;          // when this turn began
    double remaining_then = 0;  // remaining_bytes at that time
};

struct Store {
    std::uint32_t dataset = 0;
    std::uint32_t node = kAllNodes;  // that caches it, where every node does for itself
    std::uint32_t index = kNoStore;  // in what is planned
    double size_bytes = 0;
    double cached_bytes = 0;
    double quota_bytes = 0;
    std::vector<Reader*> readers;
    std::vector<Reader*> paused{};  // who wait for their next turn

    bool fills() const { return cached_bytes < quota_bytes && !readers.empty(); }
};

// What the reader hits of the rest of its epoch. What differs from 1 by rounding is 1: a job that needs nothing from
// the remote is granted nothing.
double rest_hit_ratio(const Reader& reader);
// Time passes for everybody who reads the store: they read at their rates, misses are admitted up to the quota. `read`
// has the bytes each of them read meanwhile, by place in store.readers.
void advance(Store& store, std::span<const double> read);
// A reader begins an epoch (its first one, too): all that it will read of it through this store, `part` of the dataset,
// is unread, and what is cached now can be hit.
void begin_epoch(const Store& store, Reader& reader, double part = 1);
// A turn of its reading begins, or is over: to be told of all turns but the last.
void begin_turn(Reader& reader, double now_s);
void end_turn(Reader& reader, double now_s);
// Cuts what is cached to the quota, first what every reader has read already.
void cut_to_quota(Store& store);

}  // namespace larder::scheduler
