#include "cache/dataset/index_tables.h"

#include <zstd.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "cache/dataset/framed_chunk.h"
#include "cache/dataset/index_in_parallel.h"
#include "cache/dataset/index_litdata_rows.h"
#include "cache/dataset/indexed_object.h"
#include "cache/protocol/claims.h"
#include "cache/protocol/sample_table.h"

namespace larder::cache {
namespace {

constexpr std::uint64_t kFrameHeaderBytesMax = 18;

IndexedObject start_object(const std::string& path, const ObjectReader& reader) {
    return {.path = path, .size_bytes = reader.size_bytes(), .tag = reader.tag()};
}

// Adds the samples or windows of an uncompressed file. If `one_block`, adds the whole file as one block.
Result<IndexedObject> index_plain(ObjectReader& reader, const TableFile& file, const BlockGoal& goal, bool one_block,
                                  std::uint64_t window_bytes, const ObjectProgress& progress) {
    IndexedObject object = start_object(file.path, reader);
    auto table = protocol::SampleTable::open(reader, file.sample_count);
    if (!table) return std::unexpected(table.error());
    BlockGrouper grouper(goal, object);
    std::uint64_t data_begin = 0;
    for (std::uint32_t i = 0; i < table->sample_count(); ++i) {
        if (i % kSamplesPerProgress == 0) {
            if (auto on = progress(0, index_bytes(object)); !on) return std::unexpected(on.error());
        }
        const auto extent = table->next();
        if (!extent) return std::unexpected(extent.error());
        if (i == 0) data_begin = extent->offset;
        if (one_block || window_bytes > 0) continue;
        if (auto added = grouper.add(extent->offset, extent->bytes); !added) return std::unexpected(added.error());
    }
    if (window_bytes > 0 && table->sample_count() > 0) {
        std::uint64_t at = data_begin;
        for (; object.size_bytes - at >= window_bytes; at += window_bytes) {
            if (auto added = grouper.add(at, window_bytes); !added) return std::unexpected(added.error());
            if (object.samples.size() % kSamplesPerProgress == 0) {
                if (auto on = progress(at, index_bytes(object)); !on) return std::unexpected(on.error());
            }
        }
        object.left_over_bytes = object.size_bytes - at;
    }
    if (one_block) {
        if (auto added = make_one_block(object, file.sample_count, 0); !added) return std::unexpected(added.error());
    }
    return object;
}

Result<IndexedObject> index_framed(ObjectReader& reader, const TableFile& file, const ObjectProgress& progress) {
    IndexedObject object = start_object(file.path, reader);
    if (auto indexed = index_framed_chunk(reader, file.sample_count, object, progress); !indexed) {
        return std::unexpected(indexed.error());
    }
    return object;
}

Result<IndexedObject> index_compressed(ObjectReader& reader, const TableFile& file) {
    IndexedObject object = start_object(file.compressed_path, reader);
    const auto head = reader.read(0, std::min<std::uint64_t>(object.size_bytes, kFrameHeaderBytesMax));
    if (!head) return std::unexpected(head.error());
    const unsigned long long content_bytes = ZSTD_getFrameContentSize(head->data(), head->size());
    if (content_bytes == ZSTD_CONTENTSIZE_ERROR)
        return fail(ErrorCode::corrupt, "at offset 0: it is not compressed with zstd");
    std::uint64_t raw_bytes = file.raw_bytes;
    if (content_bytes != ZSTD_CONTENTSIZE_UNKNOWN) {
        if (content_bytes != file.raw_bytes &&
            (file.raw_bytes_of_older_writers == 0 || content_bytes != file.raw_bytes_of_older_writers)) {
            return fail(ErrorCode::corrupt, "it has " + std::to_string(content_bytes) +
                                                " bytes once decompressed, but its index says " +
                                                std::to_string(file.raw_bytes));
        }
        raw_bytes = content_bytes;
    }
    if (raw_bytes == 0) return fail(ErrorCode::corrupt, "it has no bytes once decompressed");
    if (auto added = make_one_block(object, file.sample_count, raw_bytes); !added)
        return std::unexpected(added.error());
    if (!protocol::may_decompress_to(object.size_bytes, raw_bytes)) {
        return fail(ErrorCode::corrupt, "its " + std::to_string(object.size_bytes) + " bytes cannot hold the " +
                                            std::to_string(raw_bytes) + " decompressed bytes that it claims");
    }
    // Each sample takes a word of the file's table.
    if (!protocol::lies_within(0, file.sample_count, sizeof(std::uint32_t), raw_bytes)) {
        return fail(ErrorCode::corrupt, "its index says that it holds " + std::to_string(file.sample_count) +
                                            " samples, more than its " + std::to_string(raw_bytes) +
                                            " decompressed bytes can hold");
    }
    return object;
}

bool is_listed(const ObjectListing& listing, std::string_view path) {
    const auto path_of = [&](const ObjectListing::Object& object) { return listing.path(object); };
    return std::ranges::binary_search(listing.objects, path, {}, path_of);
}

Result<IndexedObject> index_uncompressed(ObjectReader& reader, const TableFile& file, const BlockGoal& goal,
                                         bool one_block, std::uint64_t window_bytes, const ObjectProgress& progress) {
    auto object = file.framed ? index_framed(reader, file, progress)
                              : index_plain(reader, file, goal, one_block, window_bytes, progress);
    if (!object && object.error().code == ErrorCode::corrupt) {
        const auto has_rows = has_litdata_rows(reader);
        if (has_rows && *has_rows) {
            return fail(ErrorCode::unsupported,
                        "its samples lie in an Arrow table, but those of the dataset's first chunk do not; a dataset "
                        "that mixes both is not supported");
        }
    }
    return object;
}

// Returns, for each file, whether to read its uncompressed form. Lists the remote only if a file may have both forms.
// HTTP has no listing: one unlisted file is then opened, and all unlisted files are assumed to have the same form.
Result<std::vector<bool>> find_uncompressed(ObjectSource& source, const std::vector<TableFile>& files,
                                            std::stop_token stop) {
    std::vector<bool> plain;
    plain.reserve(files.size());
    for (const TableFile& file : files) plain.push_back(file.compressed_path.empty());
    if (std::ranges::find(plain, false) == plain.end()) return plain;
    const auto listing = source.list({}, std::move(stop));
    if (!listing) return std::unexpected(listing.error());
    std::optional<bool> unlisted_are_plain;
    for (std::size_t i = 0; i < files.size(); ++i) {
        const TableFile& file = files[i];
        if (plain[i] || file.path.empty()) continue;
        plain[i] = is_listed(*listing, file.path);
        if (plain[i] || is_listed(*listing, file.compressed_path)) continue;
        if (!unlisted_are_plain) {
            const auto opened = source.open(file.compressed_path);
            if (!opened && opened.error().code != ErrorCode::not_found) return std::unexpected(opened.error());
            unlisted_are_plain = !opened;
        }
        plain[i] = *unlisted_are_plain;
    }
    return plain;
}

}  // namespace

Result<void> check_distinct(std::span<const TableFile> files) {
    std::vector<std::string> paths;
    paths.reserve(files.size());
    for (const TableFile& file : files) paths.push_back(file.path.empty() ? file.compressed_path : file.path);
    std::ranges::sort(paths);
    const auto duplicate = std::ranges::adjacent_find(paths);
    if (duplicate != paths.end()) return fail(ErrorCode::corrupt, "the index names " + *duplicate + " twice");
    return {};
}

Result<std::unique_ptr<ObjectReader>> open_named(ObjectSource& source, const std::string& path) {
    auto reader = source.open(path);
    if (!reader && !reader.error().message.starts_with(path)) return std::unexpected(reader.error().within(path));
    return reader;
}

Result<void> index_tables(ObjectSource& source, const TableFiles& tables, const BlockGoal& goal,
                          DatasetContent& content, std::vector<std::string>& notes,
                          const IndexProgressCallback& progress, std::stop_token stop, IndexJournal* journal) {
    const std::vector<TableFile>& files = tables.files;
    if (auto distinct = check_distinct(files); !distinct) return distinct;
    const auto plain = find_uncompressed(source, files, stop);
    if (!plain) return std::unexpected(plain.error());
    const bool any_compressed = std::ranges::find(*plain, false) != plain->end();
    const bool any_framed = std::ranges::find(files, true, &TableFile::framed) != files.end();
    if (any_compressed && any_framed) {
        return fail(ErrorCode::unsupported,
                    "some of its files are compressed whole and others within; a dataset must have one or the other");
    }
    if ((any_compressed || any_framed) && tables.window_bytes > 0) {
        return fail(ErrorCode::unsupported,
                    "its files are compressed, so windows of tokens cannot be read on their own: decompress them");
    }
    auto objects = index_in_parallel(
        files.size(),
        [&](std::size_t i, const ObjectProgress& step) -> Result<IndexedObject> {
            const TableFile& file = files[i];
            const std::string& path = (*plain)[i] ? file.path : file.compressed_path;
            auto reader = open_named(source, path);
            if (!reader) return std::unexpected(reader.error());
            const JournalKey key{
                .path = path,
                .size_bytes = (*reader)->size_bytes(),
                .tag = (*reader)->tag(),
                .depends_on = hash_numbers({file.sample_count, file.raw_bytes, file.raw_bytes_of_older_writers,
                                            any_compressed ? 1u : 0u, tables.window_bytes, file.framed ? 1u : 0u})};
            auto object = find_or_compute(journal, key, [&] {
                return (*plain)[i] ? index_uncompressed(**reader, file, goal, any_compressed, tables.window_bytes, step)
                                   : index_compressed(**reader, file);
            });
            if (object || object.error().code == ErrorCode::cancelled) return object;
            if (!object.error().message.starts_with(path)) object = std::unexpected(object.error().within(path));
            return object;
        },
        progress, std::move(stop));
    if (!objects) return std::unexpected(objects.error());

    content.samples_by_ordinal = any_compressed;
    if (any_compressed && goal.target != protocol::BlockTarget::object) {
        notes.push_back("its files are compressed, so each is one block, of " +
                        std::to_string(files.front().sample_count) + " samples or about that");
    }
    if (any_framed) {
        notes.push_back("its samples are compressed in frames, so each frame is one block, whatever the block size");
    }
    return append_all(content, std::move(*objects), notes, source.description());
}

}  // namespace larder::cache
