#pragma once

// The cache systems and bandwidth rules that the simulator compares. A cache system is given the running jobs. It sets
// the quota of each store, and the hit ratio h, the remote bandwidth b and the rate f = min(f*, b / (1 - h)) of each
// reader.
//
//     uniform              Larder's own: quotas and (with `joint`) bandwidth from allocator::assign
//     lru                  one LRU cache over all datasets
//     static-per-job       a private cache for each job, in proportion to its GPUs
//     coordl               each node's cache for its jobs; those of one dataset share cache and fetches (coordl.cc)
//     whole-dataset        whole datasets, by benefit per byte
//     quiver               parts of datasets, by benefit per byte, and hits that stand in for misses (quiver.cc)
//     none
//
// Bandwidth rules: `joint` takes bandwidth from the plan; `fair` is max-min fair over the bandwidth that the jobs could
// use; `first-come` serves jobs in the order of their starts.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "allocator/assign.h"
#include "base/error.h"
#include "scheduler/gpu_cluster.h"
#include "scheduler/simulator/simulated_store.h"
#include "scheduler/snapshot.h"

namespace larder::scheduler {

enum class CacheKind : std::uint8_t { uniform, lru, static_per_job, coordl, whole_dataset, quiver, none };
enum class BandwidthKind : std::uint8_t { joint, fair, first_come };

struct CacheOptions {
    CacheKind cache = CacheKind::uniform;
    BandwidthKind bandwidth = BandwidthKind::joint;
    allocator::ObjectiveKind objective = allocator::ObjectiveKind::efficiency;
    // Each node's cache, an equal part of the whole, serves only the jobs that run there. For uniform and none only.
    bool own_caches = false;
    bool epochs_known = true;  // how many epochs each job has to go; if not, every job counts as reading on
    // For lru. 0: hit ratios are averages over epochs, and a job that was never stopped counts as having read forever.
    // Above 0: hit ratios follow each job from its first byte through its epochs, in steps of this length. Use steps
    // for runs of seconds only: a run of hours would take too many.
    double lru_step_s = 0;
};

// Parses names from the table above. `cache` may name both ("uniform+joint", "lru+first-come"). invalid_argument lists
// the allowed names.
Result<CacheOptions> parse_cache(std::string_view cache, std::string_view bandwidth);
std::string name(const CacheOptions& options);

// A job that waits for its next turn.
struct WaitingReader {
    const SimulatedReader* reader = nullptr;
    std::uint32_t gpus = 0;
    double time_share = 1;
    const Placement* placement = nullptr;  // its last placement
};

struct ReadersState {
    double now_s = 0;
    std::span<SimulatedReader* const> readers;
    std::span<Store* const> stores;       // stores with readers or with cached bytes
    std::span<const std::uint32_t> gpus;  // of each reader's job
    std::uint32_t gpus_all = 0;
    Storage storage;
    std::span<const GpuNode> nodes;
    std::span<const Placement* const> placements;  // of each reader's job
    std::span<const double> time_shares;           // of each reader's job
    std::span<const WaitingReader> waiting{};
    double node_disk_bytes_per_second = std::numeric_limits<double>::infinity();
    double node_nic_bytes_per_second = std::numeric_limits<double>::infinity();
    bool epochs_known = true;
    bool caches_by_job = false;   // each job's cache lies on its own nodes
    bool stores_set_hits = true;  // if not, a plan sets hit ratios

    // True if the reader counts as gaining by cache that has yet to fill.
    bool gains(const SimulatedReader& reader) const { return !epochs_known || reads_on(reader); }
};

class CacheSystem {
public:
    virtual ~CacheSystem() = default;
    virtual Result<void> plan(const ReadersState& state) = 0;
    // True if every job has a store of its own.
    virtual bool has_store_per_job() const { return false; }
    // For systems with a store per job: true if jobs of one dataset that run on one node have one store together.
    virtual bool shares_stores_on_node() const { return false; }
    // True if hit ratios follow from the contents of the stores. If false, plan() sets them.
    virtual bool is_fluid() const { return true; }
    // True if readers read hits first (SimulatedReader::substitutes_above_bytes).
    virtual bool substitutes_hits() const { return false; }
    // For systems that are not fluid: when to plan again even if nothing happens.
    virtual double next_plan_s(std::span<const std::unique_ptr<Store>> stores, double now_s) const {
        static_cast<void>(stores), static_cast<void>(now_s);
        return kNever;
    }
};

std::unique_ptr<CacheSystem> make_cache_system(const CacheOptions& options);

// Building blocks, public for tests.

// Sets each reader's remote bandwidth, at most f* (1 - h), and its rate. Readers of one store that share what they
// fetch have the shares of all of them together, and the one that misses most fetches for all.
void share_bandwidth(BandwidthKind kind, std::span<SimulatedReader* const> readers, double remote_bytes_per_second);
// Sets the hit ratios of readers that share one LRU cache, at their present rates. A block is evicted after a time T,
// in which the readers read as many distinct bytes as the cache holds (Che, Tung, Wang 2002). Requests follow one
// permutation per epoch. A stopped job counts with the bytes it read in its turns: its blocks age while it waits, and
// it finds the rest of them when it resumes. If follows_epochs, hit ratios follow each reader through its epochs,
// by its turns. If not, they are averages over epochs.
void set_lru_hits(std::span<Store* const> stores, double cache_bytes, double now_s = 0, bool follows_epochs = false);
// Returns when hit ratios of resumed jobs will have moved enough to set them again; kNever if they will not.
double next_lru_refresh_s(std::span<const std::unique_ptr<Store>> stores, double now_s);
// Returns the part of a dataset that one job reads in a window of `epochs` epochs, averaged over all places where the
// window may begin.
double distinct_part(double epochs);

}  // namespace larder::scheduler
