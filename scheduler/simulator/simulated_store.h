#pragma once

// A fluid model of the node cache: how much is cached, and how much of it each job can still hit. A store holds a
// uniform random sample of one dataset's blocks, up to its quota (uniform caching). Each reader has two counts: the
// unread bytes of its epoch, and those of them that are cached. Their ratio is the exact expected hit ratio of the rest
// of the epoch. So blocks admitted during an epoch help a job only where it has not read yet (delayed effectiveness;
// SiloD, EuroSys '23).

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace larder::scheduler {

inline constexpr std::uint32_t kNoStore = std::numeric_limits<std::uint32_t>::max();
inline constexpr std::uint32_t kAllNodes = std::numeric_limits<std::uint32_t>::max();

// The bytes that a job read between a start and the next stop.
struct ReadTurn {
    double from_s = 0;
    double to_s = 0;
    double bytes = 0;
};

// The reading state of one running job.
struct SimulatedReader {
    std::uint32_t job = 0;           // index in the simulation's jobs
    std::uint32_t store = kNoStore;  // index in the planned stores
    double weight = 1;
    double ideal = 0;      // f* with the present GPUs, placement and packing
    double told_part = 1;  // what plans and policies are told of f*, over f*
    double remaining_bytes = 0;
    double unread_bytes = 0;  // of the current epoch
    double unread_cached_bytes = 0;
    bool first_epoch = true;
    std::uint64_t started = 0;  // rank in the order of starts
    double equal_rate = 0;      // e: the rate if all readers shared cache and bandwidth equally
    double bandwidth = 0;
    double hit_ratio = 0;
    double rate = 0;
    double cap = std::numeric_limits<double>::infinity();  // bound by the disks and networks of its nodes
    const SimulatedReader* job_reader = nullptr;           // set if this reader is a job's part on one node
    // Cached samples stand in for missing ones while more bytes than this are cached and unread (Quiver).
    double substitutes_above_bytes = std::numeric_limits<double>::infinity();
    bool has_read_hits = false;   // in this epoch, for the first time: hits that others add later are mixed with misses
    bool shares_fetches = false;  // what it fetches serves the other readers of its store, too
    double fetch_part = 1;        // of its misses; the rest comes from fetches of others
    // The turns before this one, oldest first; empty if the job was never stopped.
    std::vector<ReadTurn> turns{};
    double turn_s = 0;                   // when this turn began
    double remaining_at_turn_start = 0;  // remaining_bytes when this turn began
};

struct Store {
    std::uint32_t dataset = 0;
    std::uint32_t node = kAllNodes;  // the node that caches it, if every node caches for itself
    std::uint32_t index = kNoStore;  // index in the planned stores
    double size_bytes = 0;
    double cached_bytes = 0;
    double quota_bytes = 0;
    std::vector<SimulatedReader*> readers;
    std::vector<SimulatedReader*> paused{};  // jobs that wait for their next turn

    bool fills() const { return cached_bytes < quota_bytes && !readers.empty(); }
};

// The reader's hit ratio in the rest of its epoch. A ratio that differs from 1 only by rounding is 1: a job that needs
// nothing from the remote is granted nothing.
double rest_hit_ratio(const SimulatedReader& reader);
// Returns what plans are told of f*.
inline double told_ideal(const SimulatedReader& reader) {
    return reader.ideal * reader.told_part;
}
// True if the reader reads on after its present epoch.
inline bool reads_on(const SimulatedReader& reader) {
    return reader.remaining_bytes > reader.unread_bytes * (1 + 1e-9);
}
// Returns the reader's misses, and those of them that it fetches from the remote, in bytes per second.
inline double miss_rate(const SimulatedReader& reader) {
    return reader.rate * (1 - reader.hit_ratio);
}
inline double remote_rate(const SimulatedReader& reader) {
    return miss_rate(reader) * reader.fetch_part;
}
// True if the reader need not wait for misses: it reads cached samples first.
inline bool reads_hits_first(const SimulatedReader& reader) {
    return !reader.has_read_hits && reader.unread_cached_bytes > reader.substitutes_above_bytes;
}
// Sets the rate from f*, the bandwidth and the hit ratio. A reader that reads hits first reads at f*, and hits what the
// bandwidth does not bring.
void set_rate(SimulatedReader& reader);
// Advances all readers of the store and admits their misses up to the quota. `read` has the bytes read by each of
// store.readers, in the same order.
void advance(Store& store, std::span<const double> read);
// Begins an epoch, also the first one. The reader's `part` of the dataset is unread, and all that is cached now can be
// hit.
void begin_epoch(const Store& store, SimulatedReader& reader, double part = 1);
// Begin and end a turn of reading. The last turn need not be ended.
void begin_turn(SimulatedReader& reader, double now_s);
void end_turn(SimulatedReader& reader, double now_s);
// Cuts cached bytes to the quota. First drops what every reader has already read.
void cut_to_quota(Store& store);

}  // namespace larder::scheduler
