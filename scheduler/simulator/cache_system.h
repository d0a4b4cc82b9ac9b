#pragma once

// The cache systems and bandwidth rules that are compared. Given who runs now, a system sets the quota of every store,
// and of every reader what it hits, its remote bandwidth and so its rate, f = min(f*, b / (1 - h)).
//
//     uniform              uniform caching, quotas and (with `joint`) bandwidth from allocator::assign: Larder's own
//     lru                  one LRU cache over all datasets
//     static-per-job       a part by GPUs for each job, nobody shares (CoorDL, VLDB '21)
//     whole-dataset        whole datasets by benefit for their size (Quiver, FAST '20)
//     none
//
// Bandwidth: joint, from the plan; fair, max-min over what the jobs could take; first-come, in the order of starts.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "allocator/assign.h"
#include "base/error.h"
#include "scheduler/gpu_cluster.h"
#include "scheduler/simulator/store.h"
#include "scheduler/snapshot.h"

namespace larder::scheduler {

enum class CacheKind : std::uint8_t { uniform, lru, static_per_job, whole_dataset, none };
enum class BandwidthKind : std::uint8_t { joint, fair, first_come };

struct CacheOptions {
    CacheKind cache = CacheKind::uniform;
    BandwidthKind bandwidth = BandwidthKind::joint;
    allocator::ObjectiveKind objective = allocator::ObjectiveKind::efficiency;
    // A node's cache, an equal part of all, serves the jobs that run there and no others. Of uniform and none.
    bool own_caches = false;
};

// Names as in the table above; `cache` may name both ("uniform+joint", "lru+first-come"). invalid_argument has what is
// allowed.
Result<CacheOptions> parse_cache(std::string_view cache, std::string_view bandwidth);
std::string name(const CacheOptions& options);

// A job that waits for its next turn.
struct WaitingReader {
    const Reader* reader = nullptr;
    std::uint32_t gpus = 0;
    double time_share = 1;
    const Placement* placement = nullptr;  // where it ran last
};

struct ReadersState {
    double now_s = 0;
    std::span<Reader* const> readers;
    std::span<Store* const> stores;       // those with readers, and those with anything cached
    std::span<const std::uint32_t> gpus;  // of each reader's job
    std::uint32_t gpus_all = 0;
    Storage storage;
    std::span<const GpuNode> nodes;
    std::span<const Placement* const> placements;  // of each reader's job
    std::span<const double> time_shares;           // of each reader's job
    std::span<const WaitingReader> waiting{};
    double node_disk_bytes_per_second = std::numeric_limits<double>::infinity();
    double node_nic_bytes_per_second = std::numeric_limits<double>::infinity();
};

class CacheSystem {
public:
    virtual ~CacheSystem() = default;
    virtual Result<void> plan(const ReadersState& state) = 0;
    // Whether every job has a store of its own.
    virtual bool per_job() const { return false; }
    // Whether what is hit follows from the stores; if not, plan() sets it.
    virtual bool fluid() const { return true; }
    // Of those that are not fluid: when to plan again though nothing happens.
    virtual double next_plan_s(std::span<const std::unique_ptr<Store>> stores, double now_s) const {
        static_cast<void>(stores), static_cast<void>(now_s);
        return kNever;
    }
};

std::unique_ptr<CacheSystem> make_cache_system(const CacheOptions& options);

// The parts, for tests.

// Each reader's remote bandwidth from what it could take, f* (1 - h).
void share_bandwidth(BandwidthKind kind, std::span<Reader* const> readers, double remote_bytes_per_second);
// What an LRU cache hits that all readers share, at the rates they read with: the time T after which a block is evicted
// is the one in which just as many distinct bytes are read as fit (Che, Tung, Wang 2002), with per-epoch permutations
// for the request process. Who was stopped meanwhile counts with what it read in its turns: the blocks of those that
// wait grow old, and who is back finds what is left.
void set_lru_hits(std::span<Store* const> stores, double cache_bytes, double now_s = 0);
// When those that are back hit so much more, or less, that it should be done again.
double next_lru_refresh_s(std::span<const std::unique_ptr<Store>> stores, double now_s);
// The part of a dataset that one job reads in a window of `epochs` epochs' length, on average over where it begins.
double distinct_part(double epochs);
void set_equal_rates(const ReadersState& state);

}  // namespace larder::scheduler
