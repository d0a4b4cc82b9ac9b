#pragma once

// The blocks that the daemon chooses for a loader that reads in shared order (ReadOrder::shared in
// cache/protocol/wire.h). Keeps the share, which are the blocks that the daemon may still choose, and checks each
// choice against it: the daemon cannot make a loader read a block twice, or one that is not its own. Does no I/O.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace larder::detail {

class BlockChoices {
public:
    // Begins anew with the blocks whose bits are set, a word for each 64 blocks. Answers to earlier questions are
    // ignored.
    void begin(std::vector<std::uint64_t> share) {
        share_ = std::move(share);
        ++pass_;
        outdated_ += std::exchange(asked_, 0);
        wanted_ = 0;
        chosen_.clear();
    }
    // The session is another one, which knows of no question.
    void begin_session() {
        ++pass_;
        outdated_ = 0;
        wanted_ += std::exchange(asked_, 0);
    }

    // Wants so many more blocks.
    void want(std::uint32_t count) { wanted_ += count; }
    std::uint32_t wanted() const { return wanted_; }
    void note_asked() {
        --wanted_;
        ++asked_;
    }
    // Blocks that are wanted and have not come.
    std::uint32_t expected() const { return wanted_ + asked_; }

    std::uint32_t pass() const { return pass_; }
    std::span<const std::uint64_t> share() const { return share_; }

    // The tag of questions of this pass. Tags of fetches are below all of them.
    std::uint32_t tag() const { return kTagBit | (pass_ & ~kTagBit); }
    static bool is_choice(std::uint32_t tag) { return (tag & kTagBit) != 0; }
    // Takes an answer, which has a block unless the share is empty. False if nobody asked, or if the block is none of
    // the share.
    bool take(std::uint32_t tag, bool has_block, std::uint64_t block) {
        if (tag != this->tag()) return outdated_-- > 0;
        if (asked_ == 0 || !has_block || block / 64 >= share_.size() || ((share_[block / 64] >> (block % 64)) & 1) == 0)
            return false;
        share_[block / 64] &= ~(std::uint64_t{1} << (block % 64));
        --asked_;
        chosen_.push_back(static_cast<std::uint32_t>(block));
        return true;
    }
    // The blocks that came since the last call, in order.
    std::vector<std::uint32_t> take_chosen() { return std::exchange(chosen_, {}); }

private:
    static constexpr std::uint32_t kTagBit = 1u << 31;

    std::vector<std::uint64_t> share_;
    std::uint32_t pass_ = 0;
    std::uint32_t wanted_ = 0;   // not asked for yet
    std::uint32_t asked_ = 0;    // of this pass and session
    std::int64_t outdated_ = 0;  // questions of earlier passes that this session has yet to answer
    std::vector<std::uint32_t> chosen_;
};

}  // namespace larder::detail
