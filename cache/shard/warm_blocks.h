#pragma once

// What a warm-up brings, block by block, and what became of it: first `plan` goes over all blocks and says what is to
// come, then the scan asks for those that are `wanted` and says how each ended, then `count` goes over all blocks once
// more, as only what is cached at the end counts. Both go over a few thousand blocks a call. On the shard's thread.

#include <cstdint>
#include <functional>
#include <vector>

#include "cache/protocol/manifest.h"
#include "cache/shard/statistics.h"
#include "cache/store.h"

namespace larder::cache {

class WarmBlocks {
public:
    // Where the block is, or why it is not cached.
    enum class State : std::uint8_t {
        cached,
        at_peers,
        quota,
        disk_full,
        disk_failed,
        failed,
        not_asked,
        busy,
        wanted
    };
    struct Sources {
        std::function<bool(std::uint32_t block)> is_chosen;    // under the present quota
        std::function<bool(std::uint32_t block)> is_at_peers;  // another node's cache has it
        std::function<double()> stored_ratio;                  // stored bytes over read bytes, as known so far
    };

    WarmBlocks(const protocol::Manifest& manifest, const DatasetStore& store, Sources sources);

    // True when it is done: `progress` has the plan.
    bool plan(ScanProgress& progress);
    // True when it is done: `progress` has the outcome.
    bool count(ScanProgress& progress);

    // Whether the scan is to ask for it now. What is cached meanwhile, or finds no room, is settled here.
    bool wants(std::uint32_t block);
    // The block was read, and whoever wrote it down has ended: is it cached?
    void settle(std::uint32_t block);
    void failed(std::uint32_t block, bool remote_failed);
    // Blocks that came, and may yet be on their way into the cache.
    bool any_busy() const { return busy_ > 0; }
    // After a pass over all blocks: whether another one may bring more.
    bool another_pass();

private:
    static constexpr std::uint32_t kBlocksPerCall = 4096;
    static constexpr unsigned kPassesMax = 3;
    // A remote that fails so often in a row is asked no more.
    static constexpr unsigned kFailuresInARowMax = 32;

    bool is_cached(std::uint32_t block) const;
    bool fits(std::uint32_t block);
    State why_no_room(std::uint32_t block) const;
    bool compresses_better() const;

    const protocol::Manifest& manifest_;
    const DatasetStore& store_;
    Sources sources_;
    double stored_ratio_;        // when the present pass began
    std::vector<State> states_;  // by block
    std::uint32_t next_ = 0;
    Quota room_;  // that the plan has not dealt out
    bool all_fit_ = true;
    WarmPlan plan_;
    WarmOutcome outcome_;
    std::uint64_t busy_ = 0;
    unsigned passes_ = 1;
    unsigned failures_in_a_row_ = 0;
};

}  // namespace larder::cache
