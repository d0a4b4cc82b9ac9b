#include "cache/dataset/index_webdataset.h"

#include <algorithm>
#include <array>

#include "cache/dataset/shard_index.h"

namespace larder::cache {
namespace {

constexpr std::array<std::string_view, 8> kCompressedEndings{".tar.gz", ".tgz", ".tar.bz2", ".tbz2",
                                                             ".tar.xz", ".txz", ".tar.zst", ".tzst"};

struct ShardList {
    std::vector<std::string> paths;  // sorted
    std::uint64_t other_files = 0;
};

Result<ShardList> list_shards(const ObjectListing& listing, const std::string& where) {
    // An empty file is a truncated shard: a tar without samples has an end marker.
    const auto empty_shard = std::ranges::find_if(listing.empty, is_shard_name);
    if (empty_shard != listing.empty.end()) {
        return fail(ErrorCode::corrupt, where + "/" + *empty_shard + ": at offset 0: the archive is empty");
    }
    ShardList list;
    for (const ObjectListing::Object& object : listing.objects) {
        const std::string_view path = listing.path(object);
        if (is_compressed_shard_name(path)) {
            return fail(ErrorCode::unsupported, where + "/" + std::string(path) +
                                                    " is a compressed tar, which is not supported, because its samples "
                                                    "cannot be read on their own: unpack it");
        }
        if (is_shard_name(path)) {
            list.paths.emplace_back(path);
        } else {
            ++list.other_files;
        }
    }
    return list;
}

}  // namespace

bool is_shard_name(std::string_view name) {
    return name.ends_with(".tar");
}

bool is_compressed_shard_name(std::string_view name) {
    return std::ranges::any_of(kCompressedEndings, [&](std::string_view ending) { return name.ends_with(ending); });
}

Result<void> index_webdataset(ObjectSource& source, const std::string& only_shard, const BlockGoal& goal,
                              DatasetContent& content, std::vector<std::string>& notes,
                              const IndexProgressCallback& progress, std::stop_token stop, IndexJournal* journal) {
    auto listing = only_shard.empty() ? source.list({}, stop) : Result<ObjectListing>();
    if (!listing) return std::unexpected(listing.error());
    const auto list = only_shard.empty() ? list_shards(*listing, source.description())
                                         : Result<ShardList>(ShardList{.paths = {only_shard}});
    if (!list) return std::unexpected(list.error());
    if (list->paths.empty()) {
        return fail(ErrorCode::not_found, source.description() + " has no .tar files");
    }
    const auto work = [&](std::size_t i, const ObjectProgress& step) -> Result<IndexedObject> {
        const std::string& path = list->paths[i];
        auto reader = source.open(path);
        if (!reader) return std::unexpected(reader.error());
        const JournalKey key{.path = path, .size_bytes = (*reader)->size_bytes(), .tag = (*reader)->tag()};
        return find_or_compute(journal, key, [&] {
            auto shard = index_shard(**reader, source.description() + "/" + path, goal, step);
            if (shard) shard->path = path;
            return shard;
        });
    };
    auto shards = index_in_parallel(list->paths.size(), work, progress, std::move(stop));
    if (!shards) return std::unexpected(shards.error());
    notes = std::move(listing->notes);
    std::uint64_t members_not_files = 0;
    std::uint64_t members_without_key = 0;
    for (const IndexedObject& shard : *shards) {
        members_not_files += shard.members_not_files;
        members_without_key += shard.members_without_key;
    }
    const auto add_note = [&](std::uint64_t count, const char* what) {
        if (count > 0) notes.push_back("left out " + std::to_string(count) + " " + what);
    };
    add_note(list->other_files, "file(s) that are not .tar");
    add_note(members_not_files, "tar member(s) that are links or special files");
    add_note(members_without_key, "tar member(s) whose names give no key and field");
    return append_all(content, std::move(*shards), notes, source.description());
}

}  // namespace larder::cache
