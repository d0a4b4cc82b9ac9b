#pragma once

// A ReadingGroup chooses blocks for the sessions that read one version of a dataset in shared order, so that one fetch
// serves them all. A session is a GroupReader here, with its share: the blocks that it has yet to read in its pass.
//
// The choice: a block is drawn at random from the share. If it is cached, it is the choice. If not, the choice is a
// random block of the share that is at hand: another session's fetch brings it, or brought it to the shared window.
// Only if none is at hand, the drawn block is the choice, and is at hand for the others from then on. So a pass meets
// cached blocks as often as there are in its share, from its begin to its end, and a session that is ahead of the
// others fetches for them. A session gets no new block while kWaitingBlocksMax of its fetches wait for bandwidth:
// blocks that are fetched long before anybody reads them would have left the window by then.
//
// Pure bookkeeping, on the shard's thread: knows neither the store nor the misses, and reads no clock.

#include <boost/unordered/unordered_flat_map.hpp>
#include <boost/unordered/unordered_flat_set.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/hash.h"
#include "cache/protocol/manifest.h"
#include "cache/protocol/wire.h"

namespace larder::cache {

struct ShardJob;

class GroupReader {
public:
    // `seed` fixes the random choices.
    GroupReader(ShardJob& job, std::uint64_t seed) : job_(&job), random_(seed) {}

    // The client's number of the pass; nullopt before the first one.
    std::optional<std::uint32_t> pass() const { return pass_; }
    // The length of its list of blocks at hand; for tests.
    std::size_t offered_count() const { return offered_.size(); }
    bool has_yet_to_read(std::uint32_t block) const {
        return block / 64 < share_.size() && ((share_[block / 64] >> (block % 64)) & 1) != 0;
    }

private:
    friend class ReadingGroup;

    std::uint64_t random() { return random_ = mix64(random_); }
    // A random block of the share, which is not empty. It stays in the share.
    std::uint32_t draw();

    ShardJob* job_;
    std::uint64_t random_;
    std::optional<std::uint32_t> pass_;
    std::vector<std::uint64_t> share_;  // a bit for each block
    std::uint32_t left_ = 0;            // bits that are set
    // The blocks of a small share, and some that have been read since. Empty while the share is large.
    std::vector<std::uint32_t> last_;
    // Drawn for a choice that had to wait. A new draw would prefer cached blocks, which need not wait.
    std::optional<std::uint32_t> delayed_;
    // The ids of blocks that the session has asked for, and that wait for bandwidth.
    boost::unordered_flat_set<std::uint32_t> waiting_;
    // Blocks of the share that were at hand when they were put here. Some may have been read or dropped since.
    std::vector<std::uint32_t> offered_;
};

struct Choice {
    enum class Kind : std::uint8_t {
        block,
        none_left,  // the share is empty
        later,      // too many fetches wait for bandwidth
    };
    Kind kind = Kind::none_left;
    std::uint32_t block = 0;
};

class ReadingGroup {
public:
    static constexpr std::size_t kWaitingBlocksMax = 16;

    explicit ReadingGroup(std::shared_ptr<const protocol::Manifest> manifest) : manifest_(std::move(manifest)) {}

    const protocol::Manifest& manifest() const { return *manifest_; }
    GroupReader& join(ShardJob& job, std::uint64_t seed);
    void leave(const GroupReader& reader);
    bool empty() const { return readers_.empty(); }
    // The jobs with a session in the group.
    const std::vector<ShardJob*>& jobs() const { return jobs_; }

    // Begins the reader's pass over the blocks whose bits are set in `share`, a word for each 64 blocks.
    void begin_pass(GroupReader& reader, std::uint32_t pass, std::span<const std::uint64_t> share);
    // Takes the next block out of the reader's share. `is_cached` tells whether a block is, by its id.
    Choice choose(GroupReader& reader, const std::function<bool(std::uint32_t id)>& is_cached);

    // The reader's fetch of this block waits for bandwidth.
    void note_waiting(GroupReader& reader, std::uint32_t block_id) { reader.waiting_.insert(block_id); }
    void note_served(GroupReader& reader, std::uint32_t block_id) {
        if (!reader.waiting_.empty()) reader.waiting_.erase(block_id);
    }
    // Nobody's fetch of this block waits for bandwidth.
    void note_begun(std::uint32_t block_id);
    // The block is no longer at hand.
    void withdraw(std::uint32_t block_id) { at_hand_.erase(block_id); }
    // The number of readers that have yet to read a block that is at hand.
    std::size_t waiting_readers(std::uint32_t block_id) const;

private:
    void offer(std::uint32_t block);
    void list_jobs();

    std::shared_ptr<const protocol::Manifest> manifest_;
    std::vector<std::unique_ptr<GroupReader>> readers_;
    std::vector<ShardJob*> jobs_;
    boost::unordered_flat_map<std::uint32_t, std::uint32_t> at_hand_;  // block ids; their blocks in the manifest
};

}  // namespace larder::cache
