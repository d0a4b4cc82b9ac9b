#include "cache/shard/reading_group.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/assert.h"
#include "cache/shard/shard_job.h"

namespace larder::cache {

// Tries random blocks until one is in the share. When few of all blocks are, lists them once and tries only those.
std::uint32_t GroupReader::draw() {
    constexpr std::uint64_t kTriesExpectedMax = 8;
    const std::uint64_t blocks = share_.size() * 64;
    if (last_.empty() && left_ * kTriesExpectedMax < blocks) {
        last_.reserve(left_);
        for (std::size_t i = 0; i < share_.size(); ++i) {
            for (std::uint64_t word = share_[i]; word != 0; word &= word - 1) {
                last_.push_back(static_cast<std::uint32_t>(64 * i + static_cast<unsigned>(std::countr_zero(word))));
            }
        }
    }
    const bool is_listed = !last_.empty();
    for (;;) {
        const std::uint64_t place = random() % (is_listed ? last_.size() : blocks);
        const auto block = is_listed ? last_[place] : static_cast<std::uint32_t>(place);
        if (has_yet_to_read(block)) return block;
        if (!is_listed) continue;
        last_[place] = last_.back();
        last_.pop_back();
    }
}

GroupReader& ReadingGroup::join(ShardJob& job, std::uint64_t seed) {
    readers_.push_back(std::make_unique<GroupReader>(job, seed));
    list_jobs();
    return *readers_.back();
}

void ReadingGroup::leave(const GroupReader& reader) {
    std::erase_if(readers_, [&](const auto& other) { return other.get() == &reader; });
    list_jobs();
}

void ReadingGroup::list_jobs() {
    jobs_.clear();
    for (const auto& reader : readers_) {
        if (std::ranges::find(jobs_, reader->job_) == jobs_.end()) jobs_.push_back(reader->job_);
    }
}

void ReadingGroup::begin_pass(GroupReader& reader, std::uint32_t pass, std::span<const std::uint64_t> share) {
    const std::uint32_t blocks = manifest_->block_count();
    LARDER_ASSERT(share.size() == protocol::share_words(blocks));
    reader.pass_ = pass;
    reader.share_.assign(share.begin(), share.end());
    // The client may have set bits beyond the last block.
    if (blocks % 64 != 0) reader.share_.back() &= (std::uint64_t{1} << (blocks % 64)) - 1;
    reader.left_ = 0;
    for (const std::uint64_t word : reader.share_) reader.left_ += static_cast<std::uint32_t>(std::popcount(word));
    reader.last_.clear();
    reader.delayed_.reset();
    reader.offered_.clear();
    for (const auto& [id, block] : at_hand_) {
        if (reader.has_yet_to_read(block)) reader.offered_.push_back(block);
    }
}

Choice ReadingGroup::choose(GroupReader& reader, const std::function<bool(std::uint32_t id)>& is_cached) {
    const auto take = [&](std::uint32_t block) {
        reader.share_[block / 64] &= ~(std::uint64_t{1} << (block % 64));
        --reader.left_;
        return Choice{Choice::Kind::block, block};
    };
    if (reader.left_ == 0) return {};
    const std::uint32_t drawn = reader.delayed_ ? *std::exchange(reader.delayed_, std::nullopt) : reader.draw();
    if (is_cached(manifest_->block_id(drawn))) return take(drawn);
    auto& offered = reader.offered_;
    while (!offered.empty()) {
        std::uint32_t& place = offered[reader.random() % offered.size()];
        const std::uint32_t block = std::exchange(place, offered.back());
        offered.pop_back();
        if (reader.has_yet_to_read(block) && at_hand_.contains(manifest_->block_id(block))) return take(block);
    }
    if (reader.waiting_.size() >= kWaitingBlocksMax) {
        reader.delayed_ = drawn;
        return {.kind = Choice::Kind::later};
    }
    const Choice choice = take(drawn);
    offer(drawn);
    return choice;
}

void ReadingGroup::note_begun(std::uint32_t block_id) {
    for (const auto& reader : readers_) reader->waiting_.erase(block_id);
}

void ReadingGroup::offer(std::uint32_t block) {
    at_hand_.insert_or_assign(manifest_->block_id(block), block);
    for (const auto& reader : readers_) {
        if (!reader->has_yet_to_read(block)) continue;
        auto& offered = reader->offered_;
        // A reader that reads little would else keep every block that ever was at hand.
        if (offered.size() > 2 * at_hand_.size() + 64) {
            std::erase_if(offered, [&](std::uint32_t old) {
                return !reader->has_yet_to_read(old) || !at_hand_.contains(manifest_->block_id(old));
            });
            // A block that was dropped and fetched again is there twice.
            std::ranges::sort(offered);
            offered.erase(std::ranges::unique(offered).begin(), offered.end());
        }
        offered.push_back(block);
    }
}

std::size_t ReadingGroup::waiting_readers(std::uint32_t block_id) const {
    const auto found = at_hand_.find(block_id);
    if (found == at_hand_.end()) return 0;
    return static_cast<std::size_t>(
        std::ranges::count_if(readers_, [&](const auto& reader) { return reader->has_yet_to_read(found->second); }));
}

}  // namespace larder::cache
