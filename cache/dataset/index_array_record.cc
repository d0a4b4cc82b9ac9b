#include "cache/dataset/index_array_record.h"

#include "base/units.h"
#include "cache/dataset/index_in_parallel.h"
#include "cache/protocol/array_record.h"

namespace larder::cache {
namespace {

using protocol::ArrayRecordGroup;
using protocol::BlockTarget;

// Sums over the groups of a block.
struct GroupsOfBlock {
    std::size_t count = 0;
    std::uint64_t records = 0;
    std::uint64_t decoded_bytes = 0;
    std::uint64_t raw_bytes() const { return protocol::array_record_raw_bytes(records, decoded_bytes); }
};

// Returns the groups, from the first of `groups` on, that become one block.
GroupsOfBlock groups_in_block(std::span<const ArrayRecordGroup> groups, const BlockGoal& goal) {
    GroupsOfBlock block;
    for (const ArrayRecordGroup& group : groups) {
        GroupsOfBlock more{.count = block.count + 1,
                           .records = block.records + group.records,
                           .decoded_bytes = block.decoded_bytes + group.decoded_bytes};
        const bool fits = goal.target == BlockTarget::object ||
                          (goal.target == BlockTarget::bytes && group.end - groups.front().begin <= goal.bytes &&
                           more.raw_bytes() <= protocol::kBlockBytesMax);
        if (block.count > 0 && !fits) break;
        block = more;
    }
    return block;
}

Result<IndexedObject> index_array_file(ObjectReader& file, const std::string& path, const BlockGoal& goal,
                                       const ObjectProgress& progress) {
    IndexedObject object{.path = path, .size_bytes = file.size_bytes(), .tag = file.tag()};
    const auto groups = protocol::read_array_record_index(file);
    if (!groups) return std::unexpected(groups.error());
    std::uint64_t records = 0;
    for (std::span<const ArrayRecordGroup> left(*groups); !left.empty();) {
        const GroupsOfBlock block = groups_in_block(left, goal);
        const std::uint64_t begin = left.front().begin;
        const std::uint64_t bytes = left[block.count - 1].end - begin;
        left = left.subspan(block.count);
        records += block.records;
        if (bytes > protocol::kBlockBytesMax || block.raw_bytes() > protocol::kBlockBytesMax || records > UINT32_MAX) {
            return fail(ErrorCode::unsupported, "at offset " + std::to_string(begin) +
                                                    ": a group of records, or all that --block object asks "
                                                    "for, has " +
                                                    format_bytes(std::max(bytes, block.raw_bytes())) +
                                                    "; a block has at most " + format_bytes(protocol::kBlockBytesMax) +
                                                    ": write smaller groups");
        }
        object.blocks.push_back({.offset = begin,
                                 .length = static_cast<std::uint32_t>(bytes),
                                 .first_sample = 0,
                                 .sample_count = static_cast<std::uint32_t>(block.records),
                                 .raw_bytes = static_cast<std::uint32_t>(block.raw_bytes())});
        if (object.blocks.size() % kSamplesPerProgress == 0) {
            if (auto on = progress(begin, index_bytes(object)); !on) return std::unexpected(on.error());
        }
    }
    return object;
}

}  // namespace

bool is_array_record_name(std::string_view name) {
    for (const std::string_view suffix : {".array_record", ".arrayrecord"}) {
        const std::size_t at = name.rfind(suffix);
        if (at == std::string_view::npos) continue;
        const std::string_view rest = name.substr(at + suffix.size());
        if (rest.empty() || (rest.starts_with('-') && rest.find("-of-") != std::string_view::npos)) return true;
    }
    return false;
}

Result<void> index_array_record(ObjectSource& source, const BlockGoal& goal, DatasetContent& content,
                                std::vector<std::string>& notes, const IndexProgressCallback& progress,
                                std::stop_token stop, IndexJournal* journal) {
    const auto listing = source.list({}, stop);
    if (!listing) return std::unexpected(listing.error());
    std::vector<std::string> paths;
    for (const ObjectListing::Object& object : listing->objects) {
        if (is_array_record_name(listing->path(object))) paths.emplace_back(listing->path(object));
    }
    notes = listing->notes;
    if (const std::size_t others = listing->objects.size() - paths.size(); others > 0) {
        notes.push_back("left out " + std::to_string(others) + " file(s) that are not called .array_record");
    }
    auto objects = index_in_parallel(
        paths.size(),
        [&](std::size_t i, const ObjectProgress& step) -> Result<IndexedObject> {
            auto file = source.open(paths[i]);
            if (!file) return std::unexpected(file.error());
            const JournalKey key{.path = paths[i], .size_bytes = (*file)->size_bytes(), .tag = (*file)->tag()};
            return find_or_compute(journal, key, [&]() -> Result<IndexedObject> {
                auto object = index_array_file(**file, paths[i], goal, step);
                if (!object) return std::unexpected(object.error().within(paths[i]));
                return object;
            });
        },
        progress, std::move(stop));
    if (!objects) return std::unexpected(objects.error());
    content.samples_by_ordinal = true;
    return append_all(content, std::move(*objects), notes, source.description());
}

}  // namespace larder::cache
