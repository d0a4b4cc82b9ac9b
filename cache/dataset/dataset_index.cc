#include "cache/dataset/dataset_index.h"

#include <algorithm>
#include <span>

#include "base/units.h"
#include "cache/dataset/block_checksums.h"
#include "cache/dataset/dataset_root.h"
#include "cache/dataset/detect_format.h"
#include "cache/dataset/index_array_record.h"
#include "cache/dataset/index_choices.h"
#include "cache/dataset/index_journal.h"
#include "cache/dataset/index_litdata.h"
#include "cache/dataset/index_mds.h"
#include "cache/dataset/index_megatron.h"
#include "cache/dataset/index_packed.h"
#include "cache/dataset/index_parquet.h"
#include "cache/dataset/index_raw.h"
#include "cache/dataset/index_tfrecord.h"
#include "cache/dataset/index_webdataset.h"
#include "cache/remote/remote_place.h"

namespace larder::cache {
namespace {

using protocol::BlockTarget;
using protocol::Format;

Result<void> list_and_index_raw(ObjectSource& source, DatasetContent& content, std::vector<std::string>& notes,
                                const IndexProgressCallback& progress, std::stop_token stop) {
    const auto report_found = [&](std::uint64_t objects, std::uint64_t bytes) {
        if (progress) progress({.objects_done = objects, .bytes_done = bytes});
    };
    auto listing = source.list(report_found, std::move(stop));
    if (!listing) return std::unexpected(listing.error());
    return index_raw(std::move(*listing), source.description(), content, notes);
}

// Returns null without a journal. A journal that cannot be read counts as none, so that indexing still works.
std::unique_ptr<IndexJournal> open_journal(const IndexRequest& request, const DatasetRoot& root, Format format,
                                           const BlockGoal& goal) {
    if (request.journal_path.empty()) return nullptr;
    const RemoteOptions& remote = request.definition.remote;
    std::string what(name(format));
    for (const std::string& part :
         {root.place->url().text(), remote.endpoint, remote.region, remote.profile, format_block_goal(goal),
          std::to_string(goal.bytes), std::to_string(request.definition.tokens_per_sample),
          format_columns(request.definition.columns)}) {
        what += '\n' + part;
    }
    auto journal = IndexJournal::open(request.journal_path, what);
    return journal ? std::move(*journal) : nullptr;
}

std::uint64_t count_resumed(const IndexJournal* journal) {
    if (journal == nullptr) return 0;
    return std::max(journal->found(JournalKind::index), journal->found(JournalKind::checksums));
}

// Extends each block that holds all samples of its object to the whole object, for servers without ranges. Bytes
// outside blocks (the table before the samples, a tar's end) are then fetched too. Leaves compressed blocks alone, and
// all blocks if there are checksums, because these cover the narrow blocks only.
void widen_blocks_to_objects(DatasetContent& content) {
    if (content.blocks.empty() || !content.checksums.empty() || !content.block_details.empty()) return;
    for (const DatasetContent::Object& object : content.objects) {
        DatasetContent::Block& block = content.blocks[object.first_block];
        if (object.block_count != 1 || object.size_bytes > protocol::kBlockBytesMax) continue;
        if (block.raw_bytes > 0) continue;
        const auto before_bytes = static_cast<std::uint32_t>(block.offset);
        block.offset = 0;
        block.length = static_cast<std::uint32_t>(object.size_bytes);
        if (content.samples_by_ordinal) continue;
        for (auto& sample : std::span(content.samples).subspan(block.first_sample, block.sample_count)) {
            sample.offset += before_bytes;
        }
    }
}

// Returns the first object that is not exactly one block. Returns null if a server without ranges can serve all
// objects.
const DatasetContent::Object* first_partial_object(const DatasetContent& content) {
    if (content.blocks.empty()) return nullptr;
    for (const DatasetContent::Object& object : content.objects) {
        const DatasetContent::Block& block = content.blocks[object.first_block];
        if (object.block_count != 1 || block.offset != 0 || block.length != object.size_bytes) return &object;
    }
    return nullptr;
}

}  // namespace

Result<BlockGoal> parse_block_goal(std::string_view text) {
    if (text == "sample") return BlockGoal{BlockTarget::sample, 0};
    if (text == "object") return BlockGoal{BlockTarget::object, 0};
    const auto bytes = parse_bytes(text);
    if (!bytes || *bytes == 0) {
        return fail(ErrorCode::invalid_argument,
                    "block \"" + std::string(text) + "\" is not sample, object or a size such as 8MiB");
    }
    if (*bytes > protocol::kBlockBytesMax) {
        return fail(ErrorCode::invalid_argument, "block \"" + std::string(text) +
                                                     "\" is larger than the largest allowed, " +
                                                     format_bytes(protocol::kBlockBytesMax));
    }
    return BlockGoal{BlockTarget::bytes, *bytes};
}

std::string format_block_goal(const BlockGoal& goal) {
    switch (goal.target) {
        case BlockTarget::sample: return "sample";
        case BlockTarget::object: return "object";
        case BlockTarget::bytes: return format_bytes(goal.bytes);
    }
    return "unknown";
}

Result<std::vector<std::string>> parse_columns(std::string_view text) {
    std::vector<std::string> columns;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        std::string_view name = text.substr(begin, end - begin);
        begin = end + 1;
        while (name.starts_with(' ')) name.remove_prefix(1);
        while (name.ends_with(' ')) name.remove_suffix(1);
        if (name.empty() || std::ranges::find(columns, name) != columns.end()) {
            return fail(ErrorCode::invalid_argument, "columns \"" + std::string(text) + "\" " +
                                                         (name.empty() ? "has an empty name" : "names a column twice") +
                                                         "; expected names separated by commas, such as image,label");
        }
        columns.emplace_back(name);
    }
    return columns;
}

std::string format_columns(std::span<const std::string> columns) {
    std::string text;
    for (const std::string& column : columns) text += (text.empty() ? "" : ",") + column;
    return text;
}

Result<Format> parse_format(std::string_view text) {
    std::string known;
    for (const Format format : protocol::kFormats) {
        if (text == name(format)) return format;
        known += (known.empty() ? "" : ", ") + std::string(name(format));
    }
    return fail(ErrorCode::invalid_argument, "format \"" + std::string(text) + "\" is unknown; known: " + known);
}

Result<IndexReport> index_dataset(const IndexRequest& request, const IndexProgressCallback& progress,
                                  std::stop_token stop) {
    auto root = find_dataset_root(request);
    if (!root) return std::unexpected(root.error());
    if (request.placed) request.placed(*root->place);
    const std::shared_ptr<ObjectSource> source = root->place->objects(stop);
    const DatasetDefinition& asked = request.definition;
    IndexReport report{.definition = asked, .place = root->place, .source = source};
    report.definition.url = root->place->url().text();
    auto format = asked.format ? Result<Format>(*asked.format) : Format::webdataset;
    std::string doubt;
    if (!asked.format && root->only_shard.empty()) {
        const auto listing = source->list({}, stop);
        if (!listing) return std::unexpected(listing.error());
        format = detect_format(*source, *listing);
        if (format) doubt = mixed_listing(*listing, *format).doubt;
    }
    if (!format) return std::unexpected(format.error());
    report.definition.format = *format;
    const auto chosen = check_choices(request, *root, *format);
    if (!chosen) return std::unexpected(chosen.error());
    const BlockGoal goal = *chosen;

    DatasetContent content;
    report.definition.block = goal;
    auto journal = open_journal(request, *root, *format, goal);
    // Wraps `progress`: counts the objects whose journal record is of `kind` as resumed.
    const auto reporting = [&](JournalKind kind) {
        return [&, kind](IndexProgress now) {
            if (journal != nullptr) now.objects_resumed = std::min(now.objects_done, journal->found(kind));
            if (progress) progress(now);
        };
    };
    const IndexProgressCallback report_indexed = reporting(JournalKind::index);
    Result<void> indexed;
    switch (*format) {
        case Format::raw: indexed = list_and_index_raw(*source, content, report.notes, progress, stop); break;
        case Format::webdataset:
            indexed = index_webdataset(*source, root->only_shard, goal, content, report.notes, report_indexed, stop,
                                       journal.get());
            break;
        case Format::mds:
            indexed = index_mds(*source, goal, content, report.notes, report_indexed, stop, journal.get());
            break;
        case Format::litdata:
            indexed = index_litdata(*source, goal, asked.tokens_per_sample, content, report.notes, report_indexed, stop,
                                    journal.get());
            break;
        case Format::tfrecord:
            indexed = index_tfrecord(*source, goal, content, report.notes, report_indexed, stop, journal.get());
            break;
        case Format::megatron:
            indexed = index_megatron(*source, goal, asked.tokens_per_sample, content, report.notes, report_indexed,
                                     stop, journal.get());
            break;
        case Format::larder:
            indexed = index_packed(*source, content, report.definition.block, report.notes, report_indexed, stop,
                                   journal.get());
            break;
        case Format::array_record:
            indexed = index_array_record(*source, goal, content, report.notes, report_indexed, stop, journal.get());
            break;
        case Format::parquet:
            indexed = index_parquet(*source, goal, asked.columns, content, report.notes, report_indexed, stop);
            break;
    }
    if (!indexed) return std::unexpected(indexed.error());
    if (stop.stop_requested()) return fail(ErrorCode::cancelled, "indexing was cancelled");
    if (!doubt.empty()) report.notes.push_back(std::move(doubt));
    if (!source->serves_ranges()) {
        widen_blocks_to_objects(content);
        if (const DatasetContent::Object* object = first_partial_object(content)) {
            const bool is_always_partial = *format == Format::larder || !content.block_details.empty() ||
                                           content.blocks[object->first_block].raw_bytes > 0;
            return fail(ErrorCode::unsupported,
                        source->description() + "/" + std::string(content.name(*object)) +
                            ": the server answers a request for a range with the whole object, so " +
                            (is_always_partial
                                 ? "packed files, tables of rows and files compressed in frames cannot be read from "
                                   "it, because "
                                   "their blocks are parts of them"
                                 : "only datasets whose blocks are whole objects (--block object) can be read from "
                                   "it"));
        }
    }

    if (asked.checksum && content.checksums.empty()) {
        auto summed = add_checksums(*source, content, request.manifest.previous, reporting(JournalKind::checksums),
                                    stop, journal.get());
        if (!summed) return std::unexpected(summed.error());
    }

    // A file that is compressed whole can only be read whole.
    if (content.samples_by_ordinal && content.block_details.empty() && *format != Format::array_record)
        report.definition.block = {.target = BlockTarget::object, .bytes = 0};
    auto summary = write_manifest(content, report.definition, request.manifest);
    if (!summary) return std::unexpected(summary.error());
    report.manifest = *summary;
    report.objects_resumed = count_resumed(journal.get());
    if (const auto failed = journal == nullptr ? std::nullopt : journal->failure()) {
        report.notes.push_back("the journal could not be written: " + failed->message);
    }
    return report;
}

}  // namespace larder::cache
