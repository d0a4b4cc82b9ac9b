#pragma once

// Decides for each block whether a warm-up fetches it, and records the outcome. First `plan` walks all blocks and
// decides what to fetch. Then the scan requests the blocks that `wants` accepts and reports how each ended. Last,
// `count_outcomes` walks all blocks again, because only blocks that are cached at the end count as warmed. `plan` and
// `count_outcomes` handle a few thousand blocks per call. On the shard's thread.

#include <cstdint>
#include <functional>
#include <vector>

#include "cache/protocol/manifest.h"
#include "cache/shard/statistics.h"
#include "cache/store/store.h"

namespace larder::cache {

class WarmBlocks {
public:
    // The place of a cached block, or the reason why a block is not cached.
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
        std::function<bool(std::uint32_t block)> is_chosen;    // by hash, under the current quota
        std::function<bool(std::uint32_t block)> is_at_peers;  // another node holds the block
        std::function<double()> stored_ratio;                  // stored bytes per byte read, as measured so far
    };

    WarmBlocks(const protocol::Manifest& manifest, const DatasetStore& store, Sources sources);

    // Plans the next blocks. True if all are done: `progress` then has the plan.
    bool plan(ScanProgress& progress);
    // Counts the outcomes of the next blocks. True if all are done: `progress` then has the outcome.
    bool count_outcomes(ScanProgress& progress);

    // True if the scan must request the block now. Settles a block that is cached by now or has no room.
    bool wants(std::uint32_t block);
    // Records the outcome of a block that was read. Call when its admission has ended.
    void settle(std::uint32_t block);
    void failed(std::uint32_t block, bool remote_failed);
    // True if blocks were read that have room but are not cached yet.
    bool any_busy() const { return busy_ > 0; }
    // Call after a pass over all blocks. True if another pass may cache more; that pass has then begun.
    bool begin_another_pass();

private:
    static constexpr std::uint32_t kBlocksPerCall = 4096;
    static constexpr unsigned kPassesMax = 3;
    // The remote is not asked again after this many failures in a row.
    static constexpr unsigned kFailuresInARowMax = 32;

    bool is_cached(std::uint32_t block) const;
    bool take_room(std::uint32_t block);
    State why_no_room(std::uint32_t block) const;
    bool compresses_better() const;
    bool quota_has_grown() const;
    void note_quota();

    const protocol::Manifest& manifest_;
    const DatasetStore& store_;
    Sources sources_;
    double stored_ratio_;        // at the start of the current pass
    Quota quota_low_;            // the lowest in the current pass
    std::vector<State> states_;  // by block
    std::uint32_t next_ = 0;
    Quota room_;  // quota that the plan has not allotted yet
    bool all_fit_ = true;
    WarmPlan plan_;
    WarmOutcome outcome_;
    std::uint64_t busy_ = 0;
    unsigned passes_ = 1;
    unsigned failures_in_a_row_ = 0;
};

}  // namespace larder::cache
