#include "cache/dataset/shard_index.h"

#include <algorithm>
#include <deque>
#include <string_view>
#include <unordered_set>

#include "base/units.h"
#include "cache/dataset/read_ahead.h"
#include "cache/protocol/tar.h"

namespace larder::cache {
namespace {

using protocol::BlockTarget;
using protocol::TarMember;

constexpr std::uint64_t kMembersPerProgress = 1024;
constexpr std::size_t kSuffixesCompared = 64;

// Groups members, in the order of the archive, into samples, and samples into blocks.
class Grouper {
public:
    Grouper(const BlockGoal& goal, IndexedObject& index) : goal_(goal), index_(index) {}

    Result<void> add_member(const TarMember& member, const protocol::SampleKey& key) {
        if (is_open_ && is_current(member, key)) {
            if (auto added = add_suffix(member, key); !added) return added;
        } else {
            if (auto closed = close_sample(); !closed) return closed;
            is_open_ = true;
            prefix_ = member.prefix;
            stem_ = key.stem;
            offset_ = member.offset;
            suffixes_used_ = 0;
            if (!many_suffixes_.empty()) many_suffixes_ = {};
            if (auto added = add_suffix(member, key); !added) return added;
        }
        end_offset_ = member.end_offset;
        return {};
    }

    // Adds the open sample, if any, to the last block or to a new one.
    Result<void> close_sample() {
        if (!is_open_) return {};
        is_open_ = false;
        const std::uint64_t bytes = end_offset_ - offset_;
        if (bytes > protocol::kBlockBytesMax) return too_long("the sample " + key(), offset_, bytes);
        const bool joins_last_block =
            !index_.blocks.empty() && goal_.target != BlockTarget::sample &&
            (goal_.target == BlockTarget::object || end_offset_ - index_.blocks.back().offset <= goal_.bytes);
        if (!joins_last_block) {
            index_.blocks.push_back({.offset = offset_,
                                     .length = 0,
                                     .first_sample = static_cast<std::uint32_t>(index_.samples.size()),
                                     .sample_count = 0});
        }
        DatasetContent::Block& block = index_.blocks.back();
        if (end_offset_ - block.offset > protocol::kBlockBytesMax) {
            return too_long("the whole shard as one block", block.offset, end_offset_ - block.offset,
                            "; choose a block size instead");
        }
        block.length = static_cast<std::uint32_t>(end_offset_ - block.offset);
        ++block.sample_count;
        index_.samples.push_back(
            {static_cast<std::uint32_t>(offset_ - block.offset), static_cast<std::uint32_t>(bytes)});
        return {};
    }

private:
    static std::unexpected<Error> too_long(const std::string& what, std::uint64_t offset, std::uint64_t bytes,
                                           const char* remedy = "") {
        return fail(ErrorCode::unsupported, "at offset " + std::to_string(offset) + ": " + what + " has " +
                                                format_bytes(bytes) + "; a block has at most " +
                                                format_bytes(protocol::kBlockBytesMax) + remedy);
    }

    bool is_current(const TarMember& member, const protocol::SampleKey& key) const {
        return prefix_ == member.prefix && stem_ == key.stem;
    }

    std::string key() const { return prefix_.empty() ? stem_ : prefix_ + "/" + stem_; }

    Result<void> add_suffix(const TarMember& member, const protocol::SampleKey& member_key) {
        if (suffixes_used_ == suffixes_.size()) suffixes_.emplace_back();
        std::string& suffix = suffixes_[suffixes_used_];
        suffix = member_key.suffix;
        for (char& c : suffix) {
            if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
        }
        if (is_used(suffix)) {
            return fail(ErrorCode::corrupt, "at offset " + std::to_string(member.offset) + ": the sample " + key() +
                                                " has two fields named " + suffix);
        }
        ++suffixes_used_;
        return {};
    }

    // A few suffixes are compared; of more, such as a hostile shard's millions, there is a set.
    bool is_used(const std::string& suffix) {
        const auto end = suffixes_.begin() + static_cast<std::ptrdiff_t>(suffixes_used_);
        if (suffixes_used_ < kSuffixesCompared) return std::find(suffixes_.begin(), end, suffix) != end;
        if (many_suffixes_.empty()) many_suffixes_.insert(suffixes_.begin(), end);
        return !many_suffixes_.insert(suffix).second;
    }

    const BlockGoal& goal_;
    IndexedObject& index_;
    bool is_open_ = false;
    std::string prefix_;
    std::string stem_;
    std::deque<std::string> suffixes_;  // the first suffixes_used_ are in use; the rest keep their memory for reuse
    std::size_t suffixes_used_ = 0;
    std::unordered_set<std::string_view> many_suffixes_;  // those in use, once there are kSuffixesCompared
    std::uint64_t offset_ = 0;
    std::uint64_t end_offset_ = 0;
};

}  // namespace

Result<IndexedObject> index_shard(ObjectReader& shard, const std::string& path, const BlockGoal& goal,
                                  const ObjectProgress& progress) {
    IndexedObject index{.path = path, .size_bytes = shard.size_bytes(), .tag = shard.tag()};
    ReadAhead source(shard, shard.near_bytes());
    protocol::TarReader reader(source);
    Grouper grouper(goal, index);
    const auto within = [&](const Error& error) { return std::unexpected(error.within(path)); };
    for (std::uint64_t members = 1;; ++members) {
        auto next = reader.next();
        if (!next) return within(next.error());
        if (!*next) break;
        const TarMember& member = **next;
        if (members % kMembersPerProgress == 0) {
            if (auto on = progress(member.offset, index_bytes(index)); !on) return std::unexpected(on.error());
        }
        if (!member.is_file()) {
            if (member.type != '5') ++index.members_not_files;
            continue;
        }
        const auto key = protocol::sample_key(member);
        if (!key) {
            ++index.members_without_key;
            continue;
        }
        if (auto added = grouper.add_member(member, *key); !added) return within(added.error());
    }
    if (auto closed = grouper.close_sample(); !closed) return within(closed.error());
    return index;
}

}  // namespace larder::cache
