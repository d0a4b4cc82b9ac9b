#include "cache/dataset/index_litdata.h"

#include <algorithm>
#include <array>

#include "base/server/json_text.h"
#include "base/units.h"
#include "cache/dataset/index_json.h"
#include "cache/dataset/index_litdata_rows.h"
#include "cache/dataset/index_tables.h"
#include "cache/protocol/format_info.h"

namespace larder::cache {
namespace json = boost::json;
namespace {

using protocol::FormatInfo;

constexpr std::uint64_t kWordBytes = 4;

std::unexpected<Error> unsupported_file(const std::string& path, const std::string& why) {
    return fail(ErrorCode::unsupported, path + ": " + why);
}

// Maps LitData's number of a torch dtype to an element type; numpy_element() does so for NumPy dtypes. Some types have
// several numbers; "" stands for a type without an ElementType.
ElementType torch_element(std::string_view number) {
    constexpr std::array<std::string_view, 21> names{
        "float32", "float32", "float64", "float64", "",      "",      "",      "",      "float16", "float16", "",
        "uint8",   "int8",    "int16",   "int16",   "int32", "int32", "int64", "int64", "",        "uint16"};
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (number == std::to_string(i)) return element_type_of(names[i]).value_or(ElementType::none);
    }
    return ElementType::none;
}

ElementType numpy_element(std::string_view number) {
    constexpr std::array<std::string_view, 11> names{"int8",   "int16",  "int32",   "int64",   "uint8",  "uint16",
                                                     "uint32", "uint64", "float16", "float32", "float64"};
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (number == std::to_string(i)) return element_type_of(names[i]).value_or(ElementType::none);
    }
    return ElementType::none;
}

ElementType litdata_element_of(std::string_view encoding) {
    if (encoding == "int") return ElementType::int64;
    if (encoding == "float") return ElementType::float64;
    constexpr std::string_view kTensor = "no_header_tensor:";
    constexpr std::string_view kNumpy = "no_header_numpy:";
    if (encoding.starts_with(kTensor)) return torch_element(encoding.substr(kTensor.size()));
    if (encoding.starts_with(kNumpy)) return numpy_element(encoding.substr(kNumpy.size()));
    return ElementType::none;
}

// Returns the keys of a node's children: the keys of a dict, else the indexes of the children.
std::vector<std::string> child_keys(const json::object& node, std::size_t children) {
    std::vector<std::string> keys;
    const json::value* context = node.if_contains("context");
    boost::system::error_code error;
    const json::value parsed =
        context != nullptr && context->is_string() ? json::parse(context->get_string(), error) : json::value();
    const bool has_keys = !error && parsed.is_array() && parsed.get_array().size() == children;
    for (std::size_t i = 0; i < children; ++i) {
        std::string key = std::to_string(i);
        if (has_keys) {
            const json::value& given_key = parsed.get_array()[i];
            key = given_key.is_string() ? std::string(given_key.get_string()) : json_text(given_key);
        }
        keys.push_back(std::move(key));
    }
    return keys;
}

// Appends the path of each leaf of a tree ("meta.width"), in order. Returns false if the form of the tree is unknown.
bool add_leaf_names(const json::value& value, const std::string& path, int depth, std::vector<std::string>& names) {
    if (depth > 64 || !value.is_object() || names.size() > protocol::kColumnsMax) return false;
    const json::object& node = value.get_object();
    const json::value* type = node.if_contains("type");
    const json::value* children = node.if_contains("children_spec");
    if (type == nullptr || children == nullptr || !children->is_array()) return false;
    if (type->is_null()) {
        names.push_back(path.empty() ? "value" : path);
        return children->get_array().empty();
    }
    const auto keys = child_keys(node, children->get_array().size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
        const std::string below = path.empty() ? keys[i] : path + "." + keys[i];
        if (!add_leaf_names(children->get_array()[i], below, depth + 1, names)) return false;
    }
    return true;
}

// Returns names for `leaves` leaves: from the tree, or their indexes if the tree cannot be used.
std::vector<std::string> leaf_names(const std::string& structure, std::size_t leaves) {
    std::vector<std::string> names;
    boost::system::error_code error;
    const json::value spec = structure.empty() ? json::value() : json::parse(structure, error);
    const bool known = !error && spec.is_array() && spec.get_array().size() == 2 &&
                       add_leaf_names(spec.get_array()[1], "", 0, names) && names.size() == leaves;
    auto sorted = names;
    std::ranges::sort(sorted);
    if (known && std::ranges::adjacent_find(sorted) == sorted.end()) return names;
    names.clear();
    for (std::size_t i = 0; i < leaves; ++i) names.push_back(std::to_string(i));
    return names;
}

Result<void> check_config(const std::string& path, const JsonAt& config, bool& tokens) {
    if (config.find("encryption")) return unsupported_file(path, "the dataset is encrypted, which is not supported");
    std::string loader = "PyTreeLoader";
    if (const auto named = config.find("item_loader")) {
        const auto text = named->text();
        if (!text) return std::unexpected(text.error());
        loader = *text;
    }
    tokens = loader == "TokensLoader";
    if (!tokens && loader != "PyTreeLoader") {
        return unsupported_file(path,
                                "it is for LitData's " + loader + "; only PyTreeLoader and TokensLoader are read");
    }
    return {};
}

Result<std::string> read_structure(const JsonAt& config) {
    const auto spec = config.find("data_spec");
    return spec ? spec->text() : std::string();
}

Result<FormatInfo> read_leaves(const std::string& path, const JsonAt& config, bool is_tokens) {
    FormatInfo info{.bare = is_tokens};
    const auto formats = config.list("data_format");
    if (!formats) return std::unexpected(formats.error());
    if (formats->empty() || formats->size() > protocol::kColumnsMax) {
        return config.bad("has " + std::to_string(formats->size()) + " leaves in data_format");
    }
    auto structure = read_structure(config);
    if (!structure) return std::unexpected(structure.error());
    info.structure = std::move(*structure);
    const auto names = leaf_names(info.structure, formats->size());
    for (std::size_t i = 0; i < names.size(); ++i) {
        const auto encoding = (*formats)[i].text();
        if (!encoding) return std::unexpected(encoding.error());
        if (encoding->starts_with("pickle")) {
            return unsupported_file(path, "leaf \"" + names[i] +
                                              "\" is pickled, which is unsafe, as unpickling it runs whatever "
                                              "code was put there: write it in another form");
        }
        info.columns.push_back({.name = names[i], .encoding = *encoding, .element = litdata_element_of(*encoding)});
    }
    if (info.bare) {
        if (info.columns.size() != 1 || info.columns[0].element == ElementType::none) {
            return unsupported_file(
                path, "its samples are not arrays of numbers of a known type, but it is for TokensLoader");
        }
        info.columns[0].name = "tokens";
    }
    return info;
}

// Adds the keys that the first row of the index's writer had. Rows may have others.
Result<void> add_row_columns(const std::string& path, const JsonAt& config, FormatInfo& info) {
    const auto structure = read_structure(config);
    if (!structure) return std::unexpected(structure.error());
    boost::system::error_code error;
    const json::value spec = structure->empty() ? json::value() : json::parse(*structure, error);
    if (error || !spec.is_array() || spec.get_array().size() != 2 || !spec.get_array()[1].is_object()) return {};
    const json::object& tree = spec.get_array()[1].get_object();
    const json::value* children = tree.if_contains("children_spec");
    if (children == nullptr || !children->is_array()) return {};
    for (std::string& key : child_keys(tree, children->get_array().size())) {
        if (std::ranges::find(info.columns, key, &protocol::FormatColumn::name) != info.columns.end()) continue;
        if (info.columns.size() == protocol::kColumnsMax) {
            return unsupported_file(path,
                                    "its rows have more than " + std::to_string(protocol::kColumnsMax) + " columns");
        }
        info.columns.push_back({.name = std::move(key), .encoding = "arrow"});
    }
    return {};
}

enum class Compressed : std::uint8_t { no, whole, framed };

Result<Compressed> read_compression(const std::string& path, const JsonAt& config) {
    std::string compression;
    if (const auto named = config.find("compression")) {
        const auto text = named->text();
        if (!text) return std::unexpected(text.error());
        compression = *text;
    }
    std::string level = "chunk";
    if (const auto named = config.find("compression_level")) {
        const auto text = named->text();
        level = text ? *text : "not a string";
    }
    if (compression.empty()) return Compressed::no;
    if (compression != "zstd" && !compression.starts_with("zstd:")) {
        return unsupported_file(path, "its chunks are compressed with " + compression + "; only zstd is read");
    }
    if (level == "chunk") return Compressed::whole;
    if (level == "batch") return Compressed::framed;
    return unsupported_file(path, "its compression_level is \"" + level +
                                      "\"; only \"batch\" and \"chunk\" are read: write it with one of them");
}

Result<TableFile> read_chunk(const std::string& index_path, const JsonAt& chunk, Compressed compressed) {
    TableFile file;
    file.framed = compressed == Compressed::framed;
    const auto samples = chunk.whole("chunk_size");
    if (!samples) return std::unexpected(samples.error());
    const auto bytes = chunk.whole("chunk_bytes");
    if (!bytes) return std::unexpected(bytes.error());
    auto path = path_beside(index_path, chunk, "filename");
    if (!path) return std::unexpected(path.error());
    file.sample_count = *samples;
    file.raw_bytes = *bytes;
    // Older writers did not count the bytes of the table.
    if (*samples < protocol::kBlockBytesMax) file.raw_bytes_of_older_writers = *bytes + (*samples + 2) * kWordBytes;
    (compressed == Compressed::whole ? file.compressed_path : file.path) = std::move(*path);
    return file;
}

// The joined contents of the index files of a dataset.
struct LitdataParts {
    TableFiles tables;
    FormatInfo info;
    std::optional<bool> have_rows;  // samples are rows of Arrow tables: the first chunk says so
};

Result<bool> chunk_has_rows(ObjectSource& source, const TableFile& file) {
    if (file.path.empty()) return false;  // compressed whole, which chunks with a table never are
    const auto chunk = open_named(source, file.path);
    if (!chunk) return std::unexpected(chunk.error());
    const auto has_rows = has_litdata_rows(**chunk);
    if (!has_rows) return std::unexpected(has_rows.error().within(file.path));
    return *has_rows;
}

Result<void> read_chunks(const std::string& path, const JsonAt& index, const JsonAt& config, TableFiles& tables) {
    const auto compressed = read_compression(path, config);
    if (!compressed) return std::unexpected(compressed.error());
    const auto chunks = index.list("chunks");
    if (!chunks) return std::unexpected(chunks.error());
    for (const JsonAt& chunk : *chunks) {
        auto file = read_chunk(path, chunk, *compressed);
        if (!file) return std::unexpected(file.error());
        if (file->sample_count > 0) tables.files.push_back(std::move(*file));
    }
    return {};
}

Result<void> read_index(ObjectSource& source, const std::string& path, LitdataParts& parts) {
    std::optional<json::value> memory;
    const auto index = read_index_json(source, path, memory);
    if (!index) return std::unexpected(index.error());
    const auto config = index->at("config");
    if (!config) return std::unexpected(config.error());
    bool is_tokens = false;
    if (auto checked = check_config(path, *config, is_tokens); !checked) return checked;
    if (auto read = read_chunks(path, *index, *config, parts.tables); !read) return read;
    if (parts.tables.files.empty()) return {};
    if (!parts.have_rows) {
        const auto have_rows = is_tokens ? Result<bool>(false) : chunk_has_rows(source, parts.tables.files.front());
        if (!have_rows) return std::unexpected(have_rows.error());
        parts.have_rows = *have_rows;
    }
    if (*parts.have_rows) return add_row_columns(path, *config, parts.info);
    auto read = read_leaves(path, *config, is_tokens);
    if (!read) return std::unexpected(read.error());
    if (parts.info.columns.empty()) parts.info = *read;
    if (parts.info != *read)
        return unsupported_file(
            path, "its leaves differ from those of earlier parts; all parts of a dataset must have the same leaves");
    return {};
}

}  // namespace

Result<void> index_litdata(ObjectSource& source, const BlockGoal& goal, std::uint32_t tokens_per_sample,
                           DatasetContent& content, std::vector<std::string>& notes,
                           const IndexProgressCallback& progress, std::stop_token stop, IndexJournal* journal) {
    const auto indexes = find_index_files(source, stop);
    if (!indexes) return std::unexpected(indexes.error());
    LitdataParts parts;
    for (const std::string& path : *indexes) {
        if (auto read = read_index(source, path, parts); !read) return read;
    }
    auto& [tables, info, have_rows] = parts;
    if (tables.files.empty()) return fail(ErrorCode::invalid_argument, source.description() + " has no samples");
    if (tokens_per_sample > 0) {
        if (!info.bare) {
            return fail(ErrorCode::invalid_argument,
                        "tokens per sample are for datasets of tokens; this one's samples have leaves of their own");
        }
        info.tokens_per_sample = tokens_per_sample;
        tables.window_bytes = std::uint64_t{tokens_per_sample} * size_bytes(info.columns[0].element);
    }
    content.format_info = protocol::encode(info);
    if (content.format_info.size() > protocol::kFormatInfoBytesMax) {
        return fail(ErrorCode::unsupported, source.description() + ": its index describes samples in " +
                                                format_bytes(content.format_info.size()) + "; at most " +
                                                format_bytes(protocol::kFormatInfoBytesMax) + " are read");
    }
    if (*have_rows) return index_litdata_rows(source, tables.files, goal, content, notes, progress, std::move(stop));
    return index_tables(source, tables, goal, content, notes, progress, std::move(stop), journal);
}

}  // namespace larder::cache
