#include "cache/dataset/index_mds.h"

#include <algorithm>

#include "cache/dataset/index_json.h"
#include "cache/dataset/index_tables.h"
#include "cache/protocol/format_info.h"

namespace larder::cache {
namespace {

using protocol::FormatColumn;

// Returns the element type of a column that holds only numbers, else none. An ndarray without a fixed shape stores its
// shape first, so its type is none.
ElementType element_of(const std::string& encoding) {
    if (encoding == "int") return ElementType::int64;
    std::string_view type = encoding;
    if (type.starts_with("ndarray:")) {
        type.remove_prefix(8);
        const std::size_t shape = type.find(':');
        if (shape == std::string_view::npos) return ElementType::none;
        type = type.substr(0, shape);
    }
    return element_type_of(type).value_or(ElementType::none);
}

Result<std::vector<FormatColumn>> read_columns(const JsonAt& shard) {
    const auto names = shard.list("column_names");
    if (!names) return std::unexpected(names.error());
    const auto encodings = shard.list("column_encodings");
    if (!encodings) return std::unexpected(encodings.error());
    const auto sizes = shard.list("column_sizes");
    if (!sizes) return std::unexpected(sizes.error());
    if (names->empty() || names->size() > protocol::kColumnsMax) {
        return shard.bad("has " + std::to_string(names->size()) + " columns");
    }
    if (encodings->size() != names->size() || sizes->size() != names->size()) {
        return shard.bad("has column_names, column_encodings and column_sizes of different lengths");
    }
    std::vector<FormatColumn> columns;
    for (std::size_t i = 0; i < names->size(); ++i) {
        FormatColumn column;
        const auto name = (*names)[i].text();
        if (!name) return std::unexpected(name.error());
        column.name = *name;
        const auto encoding = (*encodings)[i].text();
        if (!encoding) return std::unexpected(encoding.error());
        column.encoding = *encoding;
        if (column.encoding == "pkl" || column.encoding.starts_with("pkl:")) {
            return fail(ErrorCode::unsupported, "column \"" + column.name +
                                                    "\" is encoded as pkl, which is unsafe, as unpickling it runs "
                                                    "whatever code was put there: write it in another encoding");
        }
        if (!(*sizes)[i].is_null()) {
            const auto size = (*sizes)[i].whole();
            if (!size) return std::unexpected(size.error());
            if (*size > protocol::kBlockBytesMax) return (*sizes)[i].bad("is larger than a sample can be");
            column.size_bytes = static_cast<std::uint32_t>(*size);
        }
        column.element = element_of(column.encoding);
        columns.push_back(std::move(column));
    }
    return columns;
}

Result<TableFile> read_shard(const std::string& index_path, const JsonAt& shard) {
    TableFile file;
    const auto samples = shard.whole("samples");
    if (!samples) return std::unexpected(samples.error());
    file.sample_count = *samples;
    const auto raw = shard.at("raw_data");
    if (!raw) return std::unexpected(raw.error());
    const auto bytes = raw->whole("bytes");
    if (!bytes) return std::unexpected(bytes.error());
    file.raw_bytes = *bytes;
    auto path = path_beside(index_path, *raw, "basename");
    if (!path) return std::unexpected(path.error());
    file.path = std::move(*path);

    const auto zip = shard.find("zip_data");
    if (!zip) return file;
    const auto compression = shard.text("compression");
    if (!compression) return std::unexpected(compression.error());
    if (*compression != "zstd" && !compression->starts_with("zstd:")) {
        return fail(ErrorCode::unsupported, file.path + " is compressed with " + *compression + "; only zstd is read");
    }
    path = path_beside(index_path, *zip, "basename");
    if (!path) return std::unexpected(path.error());
    file.compressed_path = std::move(*path);
    return file;
}

Result<void> check_format(const JsonAt& shard) {
    const auto format = shard.text("format");
    if (!format) return std::unexpected(format.error());
    if (*format != "mds") {
        return fail(ErrorCode::unsupported, "a shard is of MosaicML's format \"" + *format + "\"; only mds is read");
    }
    const auto version = shard.whole("version");
    if (!version) return std::unexpected(version.error());
    if (*version != 2) {
        return fail(ErrorCode::unsupported,
                    "a shard is of version " + std::to_string(*version) + "; only version 2 is read");
    }
    return {};
}

// Errors of JsonAt name the index already, others do not.
Error within_index(const Error& error, const std::string& path) {
    return error.message.starts_with(path) ? error : error.within(path);
}

// Adds the shards of one index.json to `tables`. `columns` has the columns of the dataset's first shard; it is empty
// until that shard is read.
Result<void> read_index(ObjectSource& source, const std::string& path, TableFiles& tables,
                        std::vector<FormatColumn>& columns) {
    std::optional<boost::json::value> memory;
    const auto index = read_index_json(source, path, memory);
    if (!index) return std::unexpected(index.error());
    const auto shards = index->list("shards");
    if (!shards) return std::unexpected(shards.error());
    for (const JsonAt& shard : *shards) {
        if (auto checked = check_format(shard); !checked) return std::unexpected(within_index(checked.error(), path));
        auto read = read_columns(shard);
        if (!read) return std::unexpected(within_index(read.error(), path));
        if (columns.empty()) columns = *read;
        if (columns != *read) {
            return fail(
                ErrorCode::unsupported,
                path +
                    " has other columns than the shards before it; all shards of a dataset must have the same columns");
        }
        auto file = read_shard(path, shard);
        if (!file) return std::unexpected(file.error());
        if (file->sample_count > 0) tables.files.push_back(std::move(*file));
    }
    return {};
}

}  // namespace

Result<void> index_mds(ObjectSource& source, const BlockGoal& goal, DatasetContent& content,
                       std::vector<std::string>& notes, const IndexProgressCallback& progress, std::stop_token stop,
                       IndexJournal* journal) {
    const auto indexes = find_index_files(source, stop);
    if (!indexes) return std::unexpected(indexes.error());
    TableFiles tables;
    protocol::FormatInfo info;
    for (const std::string& path : *indexes) {
        if (auto read = read_index(source, path, tables, info.columns); !read) return read;
    }
    if (tables.files.empty()) return fail(ErrorCode::invalid_argument, source.description() + " has no samples");
    content.format_info = protocol::encode(info);
    return index_tables(source, tables, goal, content, notes, progress, std::move(stop), journal);
}

}  // namespace larder::cache
