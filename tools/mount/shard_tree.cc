#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/server/logging.h"
#include "tools/mount/object_tree.h"
#include "tools/mount/tree.h"

namespace larder::mount {
namespace {

// Inode numbers beside those of object_tree.h, whose files are this tree's shards: a field of a sample has kField, the
// field's place above the sample's index.
constexpr std::uint64_t kField = std::uint64_t{1} << 61;
constexpr unsigned kPlaceShift = 40;
constexpr std::uint64_t kSampleMask = (std::uint64_t{1} << kPlaceShift) - 1;
constexpr std::uint32_t kPlaceMax = (1u << 20) - 1;

// Positions in a shard's listing: a sample of the shard and a field of the sample.
constexpr unsigned kPositionShift = 20;

constexpr std::size_t kIndexedMembersMax = 2'000'000;  // of all shards together; 16 bytes each

struct SampleRange {
    std::uint64_t first = 0;
    std::uint64_t end = 0;
};

// Returns the name of a file for that of a member or field. Empty: there can be no such file.
std::string file_name(std::string name) {
    if (name.starts_with("./")) name.erase(0, 2);
    std::ranges::replace(name, '/', '_');
    if (name == "." || name == ".." || name.size() > kNameBytesMax || name.find('\0') != std::string::npos) return {};
    return name;
}

std::string index_text(std::uint64_t sample) {
    std::array<char, 24> text{};
    std::snprintf(text.data(), text.size(), "%09llu", static_cast<unsigned long long>(sample));
    return text.data();
}

class ShardTree : public Tree {
public:
    explicit ShardTree(SamplePool& pool)
        : pool_(pool),
          manifest_(pool.manifest()),
          objects_(manifest_),
          is_tar_(manifest_.header().format == protocol::Format::webdataset) {}

    Result<std::optional<Node>> node(std::uint64_t inode) override {
        if ((inode & kField) == 0) {
            const auto found = node_of(inode, manifest_);
            return found ? std::optional(directory(*found)) : std::nullopt;
        }
        const auto file = content(inode);
        if (!file) return std::nullopt;
        const auto sample = pool_.get(file->sample);
        if (!sample) return std::unexpected(sample.error());
        if (file->field >= (*sample)->fields.size()) return std::nullopt;
        return field_node(**sample, file->field);
    }

    Result<std::optional<Node>> find(std::uint64_t parent, std::string_view name) override {
        const auto found = node_of(parent, manifest_);
        if ((parent & kField) != 0 || !found) return std::nullopt;
        if (found->is_directory) {
            const auto child = objects_.find(*found, name);
            return child ? std::optional(directory(*child)) : std::nullopt;
        }
        return is_tar_ ? find_member(found->object, name) : find_by_index(found->object, name);
    }

    Result<std::optional<Entry>> entry_at(std::uint64_t parent, std::uint64_t position) override {
        const auto found = node_of(parent, manifest_);
        if ((parent & kField) != 0 || !found) return std::nullopt;
        if (found->is_directory) {
            const auto entry = objects_.entry_at(*found, position);
            if (!entry) return std::nullopt;
            return Entry{.name = std::string(entry->name), .node = directory(entry->node), .next = entry->next};
        }
        const SampleRange range = samples_of(found->object);
        std::uint64_t sample = range.first + (position >> kPositionShift);
        for (std::uint64_t place = position & kPlaceMax; sample < range.end; ++sample, place = 0) {
            const auto got = get_readable(sample);
            if (!got) return std::unexpected(got.error());
            if (!*got) continue;
            for (; place < std::min<std::uint64_t>((*got)->fields.size(), kPlaceMax); ++place) {
                std::string name = name_of(**got, static_cast<std::uint32_t>(place));
                if (name.empty()) continue;
                return Entry{.name = std::move(name),
                             .node = field_node(**got, static_cast<std::uint32_t>(place)),
                             .next = ((sample - range.first) << kPositionShift) + place + 1};
            }
        }
        return std::nullopt;
    }

    std::optional<FileContent> content(std::uint64_t inode) const override {
        if ((inode & kField) == 0) return std::nullopt;
        const FileContent file{.sample = inode & kSampleMask,
                               .field = static_cast<std::uint32_t>((inode & ~kField) >> kPlaceShift)};
        return file.sample < manifest_.sample_count() ? std::optional(file) : std::nullopt;
    }

private:
    struct Member {
        std::uint64_t name_hash;
        std::uint64_t sample;
    };
    using Members = std::vector<Member>;  // of a shard, sorted by name_hash

    Node directory(const ObjectNode& node) const {
        return {.inode = inode_of(node),
                .is_directory = true,
                .modified_ns =
                    node.is_directory ? manifest_.header().created_unix_ns : manifest_.object(node.object).mtime_ns};
    }

    Node field_node(const Sample& sample, std::uint32_t place) const {
        const std::uint32_t block = manifest_.block_of_sample(sample.index);
        return {.inode = kField | (std::uint64_t{place} << kPlaceShift) | sample.index,
                .size_bytes = sample.fields[place].bytes.size(),
                .modified_ns = manifest_.object(manifest_.block(block).object).mtime_ns};
    }

    SampleRange samples_of(std::uint64_t object) const {
        const protocol::Object shard = manifest_.object(object);
        if (shard.block_count == 0) return {};
        const protocol::Block last = manifest_.block(shard.first_block + shard.block_count - 1);
        return {.first = manifest_.block(shard.first_block).first_sample,
                .end = std::uint64_t{last.first_sample} + last.sample_count};
    }

    std::string name_of(const Sample& sample, std::uint32_t place) const {
        std::string name = is_tar_ ? std::string(sample.key) : index_text(sample.index);
        if (const std::string_view field = sample.fields[place].name; !field.empty()) name.append(".").append(field);
        return file_name(std::move(name));
    }

    // Gets a sample for its names; null if it is damaged, so that the others can be reached.
    Result<std::shared_ptr<const Sample>> get_readable(std::uint64_t index) {
        auto sample = pool_.get(index);
        if (sample || sample.error().code != ErrorCode::corrupt) return sample;
        log_warn("a damaged sample is left out", {{"sample", index}, {"problem", sample.error().message}});
        return nullptr;
    }

    Result<std::optional<Node>> find_in(std::uint64_t index, std::string_view name) {
        const auto sample = pool_.get(index);
        if (!sample) return std::unexpected(sample.error());
        for (std::uint32_t place = 0; place < std::min<std::size_t>((*sample)->fields.size(), kPlaceMax); ++place) {
            if (name_of(**sample, place) == name) return field_node(**sample, place);
        }
        return std::nullopt;
    }

    Result<std::optional<Node>> find_by_index(std::uint64_t shard, std::string_view name) {
        std::uint64_t index = 0;
        const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), index);
        const SampleRange range = samples_of(shard);
        if (error != std::errc{} || index < range.first || index >= range.end) return std::nullopt;
        return find_in(index, name);
    }

    Result<std::optional<Node>> find_member(std::uint64_t shard, std::string_view name) {
        const auto members = members_of(shard);
        if (!members) return std::unexpected(members.error());
        const std::uint64_t hash = hash_name(name);
        for (auto member = std::ranges::lower_bound(**members, hash, {}, &Member::name_hash);
             member != (*members)->end() && member->name_hash == hash; ++member) {
            auto node = find_in(member->sample, name);
            if (!node || *node) return node;
        }
        return std::nullopt;
    }

    // The names of a tar's members are in the tar alone, so its first lookup reads all of it.
    Result<std::shared_ptr<const Members>> members_of(std::uint64_t shard) {
        {
            const std::lock_guard lock(mutex_);
            if (const auto found = members_.find(shard); found != members_.end()) return found->second;
        }
        auto members = std::make_shared<Members>();
        const SampleRange range = samples_of(shard);
        for (std::uint64_t index = range.first; index < range.end; ++index) {
            const auto sample = get_readable(index);
            if (!sample) return std::unexpected(sample.error());
            if (!*sample) continue;
            for (std::uint32_t place = 0; place < std::min<std::size_t>((*sample)->fields.size(), kPlaceMax); ++place) {
                members->push_back({.name_hash = hash_name(name_of(**sample, place)), .sample = index});
            }
        }
        // The first of several members with one name is found.
        std::ranges::sort(*members, {},
                          [](const Member& member) { return std::pair(member.name_hash, member.sample); });
        const std::lock_guard lock(mutex_);
        if (members_.emplace(shard, members).second) {
            indexed_.push_back(shard);
            indexed_members_ += members->size();
        }
        while (indexed_members_ > kIndexedMembersMax && indexed_.size() > 1) {
            const auto oldest = members_.find(indexed_.front());
            indexed_members_ -= oldest->second->size();
            members_.erase(oldest);
            indexed_.pop_front();
        }
        return members;
    }

    SamplePool& pool_;
    const protocol::Manifest& manifest_;
    const ObjectTree objects_;
    const bool is_tar_;
    std::mutex mutex_;
    std::unordered_map<std::uint64_t, std::shared_ptr<const Members>> members_;  // by shard
    std::deque<std::uint64_t> indexed_;                                          // the shards in members_, oldest first
    std::size_t indexed_members_ = 0;
};

}  // namespace

std::unique_ptr<Tree> make_shard_tree(SamplePool& pool) {
    return std::make_unique<ShardTree>(pool);
}

}  // namespace larder::mount
