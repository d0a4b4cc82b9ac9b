#include "cache/dataset/index_parquet.h"

#include <algorithm>
#include <mutex>

#include "base/units.h"
#include "cache/dataset/index_in_parallel.h"
#include "cache/protocol/format_info.h"
#include "cache/protocol/parquet.h"

namespace larder::cache {
namespace {

using protocol::BlockTarget;
using protocol::ParquetFooter;
using protocol::ParquetRowGroup;

// Most footers are smaller: one request reads the whole.
constexpr std::uint64_t kFooterReadBytes = std::uint64_t{64} << 10;

struct SharedSchema {
    std::string path;  // of the file that it is from; empty: none yet
    std::string schema;
    std::string arrow_fields;
    std::string head;
    std::vector<std::string> columns;
};

// The schema that all files of the dataset must share, and sums over them. May be used from any thread.
class Table {
public:
    Result<void> add(ParquetFooter& footer, const std::string& path) {
        const std::scoped_lock lock(mutex_);
        for (const ParquetRowGroup& group : footer.row_groups) {
            for (const auto& chunk : group.chunks) chosen_bytes_ += chunk.is_chosen ? chunk.bytes : 0;
        }
        if (!shared_.path.empty()) {
            if (auto same = compare(footer, path); !same) return same;
            if (path > shared_.path) return {};
        }
        shared_ = {.path = path,
                   .schema = std::move(footer.schema),
                   .arrow_fields = std::move(footer.arrow_fields),
                   .head = std::move(footer.head),
                   .columns = std::move(footer.columns)};
        return {};
    }
    // After the last `add`.
    const SharedSchema& shared() const { return shared_; }
    std::uint64_t chosen_bytes() const { return chosen_bytes_; }

private:
    Result<void> compare(const ParquetFooter& footer, const std::string& path) const {
        const char* what = nullptr;
        if (footer.schema != shared_.schema) {
            what = "; all files of a dataset must have the same columns, types and nullability";
        } else if (footer.arrow_fields != shared_.arrow_fields) {
            // The first file's copy decodes them all.
            what = " in Arrow's types, such as durations, time zones and dictionaries";
        } else {
            return {};
        }
        return fail(ErrorCode::unsupported, std::max(path, shared_.path) + " has another schema than " +
                                                std::min(path, shared_.path) + what +
                                                ": add them as datasets of their own, or write them anew");
    }

    std::mutex mutex_;
    SharedSchema shared_;
    std::uint64_t chosen_bytes_ = 0;
};

Result<ParquetFooter> read_footer(ObjectReader& file, std::span<const std::string> columns) {
    const std::uint64_t file_bytes = file.size_bytes();
    if (file_bytes < protocol::kParquetMagic.size() + protocol::kParquetTailBytes) {
        return fail(ErrorCode::corrupt, "it is too short for a Parquet file");
    }
    const std::uint64_t first_bytes = std::min(file_bytes, kFooterReadBytes);
    auto end = file.read(file_bytes - first_bytes, first_bytes);
    if (!end) return std::unexpected(end.error());
    const auto footer_bytes = protocol::parquet_footer_bytes(end->last(protocol::kParquetTailBytes), file_bytes);
    if (!footer_bytes) return std::unexpected(footer_bytes.error());
    const std::uint64_t footer_and_tail = std::uint64_t{*footer_bytes} + protocol::kParquetTailBytes;
    const std::uint64_t footer_offset = file_bytes - footer_and_tail;
    if (footer_and_tail > first_bytes) {
        end = file.read(footer_offset, footer_and_tail);
        if (!end) return std::unexpected(end.error());
    }
    const auto footer = end->last(footer_and_tail).first(*footer_bytes);
    return protocol::parse_parquet_footer(footer, footer_offset, columns);
}

// Returns the number of row groups, from the first of `groups` on, that become one block.
std::size_t count_in_block(std::span<const ParquetRowGroup> groups, const BlockGoal& goal) {
    std::size_t count = 1;
    for (; count < groups.size() && goal.target != BlockTarget::sample; ++count) {
        if (goal.target == BlockTarget::object) continue;
        if (groups[count].begin != groups[count - 1].end) break;
        if (groups[count].end - groups.front().begin > goal.bytes) break;
    }
    return count;
}

Result<void> divide_into_blocks(std::span<const ParquetRowGroup> groups, const BlockGoal& goal, IndexedObject& object,
                                const ObjectProgress& progress) {
    std::uint64_t rows_before = 0;
    while (!groups.empty()) {
        const auto block = groups.first(count_in_block(groups, goal));
        groups = groups.subspan(block.size());
        const std::uint64_t begin = block.front().begin;
        const std::uint64_t bytes = block.back().end - begin;
        if (bytes > protocol::kBlockBytesMax) {
            return fail(ErrorCode::unsupported, "at offset " + std::to_string(begin) +
                                                    ": a row group, or all that --block object asks for, has " +
                                                    format_bytes(bytes) + "; a block has at most " +
                                                    format_bytes(protocol::kBlockBytesMax) +
                                                    ": choose fewer columns, or write smaller row groups");
        }
        std::uint64_t rows = 0;
        for (const ParquetRowGroup& group : block) rows += group.row_count;
        if (rows_before + rows > UINT32_MAX) {
            return fail(ErrorCode::unsupported, "it has too many rows; a dataset has fewer than 4294967296 samples");
        }
        object.blocks.push_back({.offset = begin,
                                 .length = static_cast<std::uint32_t>(bytes),
                                 .first_sample = 0,
                                 .sample_count = static_cast<std::uint32_t>(rows)});
        object.block_details.push_back(protocol::encode_row_groups(block, begin));
        rows_before += rows;
    }
    return progress(object.size_bytes, index_bytes(object));
}

Result<std::vector<std::string>> table_files(const ObjectListing& listing, std::vector<std::string>& notes) {
    std::vector<std::string> paths;
    std::uint64_t others = 0;
    for (const ObjectListing::Object& object : listing.objects) {
        const std::string_view path = listing.path(object);
        // Its data files include rows that were deleted or replaced: only the log says which files count.
        if (path.starts_with("_delta_log/") || path.find("/_delta_log/") != std::string_view::npos) {
            return fail(ErrorCode::unsupported, std::string(path) +
                                                    ": this is a Delta Lake table, whose log says which of its files "
                                                    "count, and which rows of them; write it as plain Parquet");
        }
        if (is_hidden_path(path)) continue;
        if (is_parquet_name(path)) {
            paths.emplace_back(path);
        } else {
            ++others;
        }
    }
    if (others > 0) notes.push_back("left out " + std::to_string(others) + " file(s) that are not called .parquet");
    return paths;
}

// Says what is fetched beside the chosen columns, because it lies between them.
void note_gaps(std::span<const std::string> columns, const Table& table, const DatasetContent& content,
               std::vector<std::string>& notes) {
    std::uint64_t block_bytes = 0;
    for (const auto& block : content.blocks) block_bytes += block.length;
    if (columns.empty() || block_bytes <= table.chosen_bytes()) return;
    notes.push_back("the chosen columns have " + format_bytes(table.chosen_bytes()) + "; " +
                    format_bytes(block_bytes - table.chosen_bytes()) +
                    " that lie between them are fetched and cached as well");
}

}  // namespace

bool is_parquet_name(std::string_view name) {
    return name.ends_with(".parquet") || name.ends_with(".parq") || name.ends_with(".pqt");
}

bool is_hidden_path(std::string_view path) {
    const auto begins_hidden = [](std::string_view name) { return name.starts_with('_') || name.starts_with('.'); };
    if (begins_hidden(path)) return true;
    for (std::size_t slash = path.find('/'); slash != std::string_view::npos; slash = path.find('/', slash + 1)) {
        if (begins_hidden(path.substr(slash + 1))) return true;
    }
    return false;
}

Result<void> index_parquet(ObjectSource& source, const BlockGoal& goal, std::span<const std::string> columns,
                           DatasetContent& content, std::vector<std::string>& notes,
                           const IndexProgressCallback& progress, std::stop_token stop) {
    const auto listing = source.list({}, stop);
    if (!listing) return std::unexpected(listing.error());
    notes = listing->notes;
    const auto paths = table_files(*listing, notes);
    if (!paths) return std::unexpected(paths.error());
    Table table;
    auto objects = index_in_parallel(
        paths->size(),
        [&](std::size_t i, const ObjectProgress& step) -> Result<IndexedObject> {
            const std::string& path = (*paths)[i];
            auto file = source.open(path);
            if (!file) return std::unexpected(file.error());
            auto footer = read_footer(**file, columns);
            if (!footer) return std::unexpected(footer.error().within(path));
            if (auto same = table.add(*footer, path); !same) return std::unexpected(same.error());
            IndexedObject object{.path = path, .size_bytes = (*file)->size_bytes(), .tag = (*file)->tag()};
            if (auto divided = divide_into_blocks(footer->row_groups, goal, object, step); !divided) {
                return std::unexpected(divided.error().within(path));
            }
            return object;
        },
        progress, std::move(stop));
    if (!objects) return std::unexpected(objects.error());

    protocol::FormatInfo info{.columns = {}, .structure = table.shared().head};
    info.columns.reserve(table.shared().columns.size());
    for (const std::string& column : table.shared().columns) {
        info.columns.push_back({.name = column, .encoding = "parquet"});
    }
    content.format_info = protocol::encode(info);
    if (info.columns.size() > protocol::kColumnsMax || content.format_info.size() > protocol::kFormatInfoBytesMax) {
        return fail(ErrorCode::unsupported, "the schema of " + table.shared().path + " has " +
                                                format_bytes(content.format_info.size()) + " and " +
                                                std::to_string(info.columns.size()) + " columns; at most " +
                                                format_bytes(protocol::kFormatInfoBytesMax) + " and " +
                                                std::to_string(protocol::kColumnsMax) + " columns are read");
    }
    content.samples_by_ordinal = true;
    if (auto appended = append_all(content, std::move(*objects), notes, source.description()); !appended) {
        return appended;
    }
    note_gaps(columns, table, content, notes);
    return {};
}

}  // namespace larder::cache
