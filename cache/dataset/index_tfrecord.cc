#include "cache/dataset/index_tfrecord.h"

#include "cache/dataset/index_in_parallel.h"
#include "cache/dataset/read_ahead.h"
#include "cache/protocol/tfrecord.h"

namespace larder::cache {
namespace {

constexpr std::uint64_t kRecordsPerProgress = 1024;
constexpr std::size_t kNearBytes = 16384;  // larger records are skipped, not read, even at a high-latency remote

Result<IndexedObject> index_file(ObjectReader& file, const std::string& path, const BlockGoal& goal,
                                 const ObjectProgress& progress) {
    IndexedObject object{.path = path, .size_bytes = file.size_bytes(), .tag = file.tag()};
    ReadAhead ahead(file, kNearBytes, ReadAhead::kFirstReadAheadFactor * file.near_bytes());
    protocol::TfrecordReader reader(ahead);
    BlockGrouper grouper(goal, object);
    for (std::uint64_t records = 1;; ++records) {
        const auto record = reader.next();
        if (!record) return std::unexpected(record.error().within(path));
        if (!*record) return object;
        if (records % kRecordsPerProgress == 0) {
            if (auto on = progress((*record)->offset, index_bytes(object)); !on) return std::unexpected(on.error());
        }
        if (auto added = grouper.add((*record)->offset, (*record)->bytes); !added) {
            return std::unexpected(added.error().within(path));
        }
    }
}

}  // namespace

bool is_tfrecord_name(std::string_view name) {
    const std::size_t at = name.rfind(".tfrecord");
    if (at == std::string_view::npos) return false;
    std::string_view rest = name.substr(at + 9);
    if (rest.starts_with('s')) rest.remove_prefix(1);
    return rest.empty() || (rest.starts_with('-') && rest.find("-of-") != std::string_view::npos);
}

Result<void> index_tfrecord(ObjectSource& source, const BlockGoal& goal, DatasetContent& content,
                            std::vector<std::string>& notes, const IndexProgressCallback& progress,
                            std::stop_token stop, IndexJournal* journal) {
    const auto listing = source.list({}, stop);
    if (!listing) return std::unexpected(listing.error());
    std::vector<std::string> paths;
    std::vector<std::string> others;
    for (const ObjectListing::Object& object : listing->objects) {
        const std::string_view path = listing->path(object);
        (is_tfrecord_name(path) ? paths : others).emplace_back(path);
    }
    if (paths.empty()) paths.swap(others);
    auto objects = index_in_parallel(
        paths.size(),
        [&](std::size_t i, const ObjectProgress& step) -> Result<IndexedObject> {
            auto file = source.open(paths[i]);
            if (!file) return std::unexpected(file.error());
            const JournalKey key{.path = paths[i], .size_bytes = (*file)->size_bytes(), .tag = (*file)->tag()};
            return find_or_compute(journal, key, [&] { return index_file(**file, paths[i], goal, step); });
        },
        progress, std::move(stop));
    if (!objects) return std::unexpected(objects.error());
    notes = listing->notes;
    if (!others.empty()) {
        notes.push_back("left out " + std::to_string(others.size()) + " file(s) that are not called .tfrecord");
    }
    return append_all(content, std::move(*objects), notes, source.description());
}

}  // namespace larder::cache
