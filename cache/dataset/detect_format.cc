#include "cache/dataset/detect_format.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "cache/dataset/index_array_record.h"
#include "cache/dataset/index_json.h"
#include "cache/dataset/index_packed.h"
#include "cache/dataset/index_parquet.h"
#include "cache/dataset/index_tfrecord.h"
#include "cache/dataset/index_webdataset.h"

namespace larder::cache {

using protocol::Format;

namespace {

std::string_view file_name(std::string_view path) {
    return path.substr(path.rfind('/') + 1);
}

// Returns the format whose writers write an index.json of this form; nullopt: unknown.
Result<std::optional<Format>> format_of_index(ObjectSource& source, const std::string& path) {
    std::optional<boost::json::value> memory;
    const auto index = read_index_json(source, path, memory);
    // The index.json may be a sample of a raw dataset, so a malformed one is not an error.
    if (!index) {
        if (index.error().code == ErrorCode::corrupt || index.error().code == ErrorCode::unsupported) {
            return std::nullopt;
        }
        return std::unexpected(index.error());
    }
    if (index->find("shards") && index->find("version")) return Format::mds;
    if (index->find("chunks") && index->find("config")) return Format::litdata;
    return std::nullopt;
}

// True if each .bin has its .idx, and there are no other files.
bool is_megatron(const ObjectListing& listing) {
    std::set<std::string_view> bins;
    std::set<std::string_view> indexes;
    for (const ObjectListing::Object& object : listing.objects) {
        const std::string_view path = listing.path(object);
        const std::string_view stem = path.substr(0, path.size() - std::min<std::size_t>(path.size(), 4));
        if (path.ends_with(".bin")) {
            bins.insert(stem);
        } else if (path.ends_with(".idx")) {
            indexes.insert(stem);
        } else {
            return false;
        }
    }
    return !bins.empty() && bins == indexes;
}

bool is_tar_name(std::string_view name) {
    return is_shard_name(name) || is_compressed_shard_name(name);
}

// A format whose files are recognised by name.
struct ShardKind {
    Format format;
    const char* singular;
    const char* plural;
    bool (*is_shard)(std::string_view name);
    bool (*is_ignored)(std::string_view path) = nullptr;  // null: no file

    bool ignores(std::string_view path) const { return is_ignored != nullptr && is_ignored(path); }
};
constexpr std::array kShardKinds{
    ShardKind{Format::webdataset, "a tar", "tars", is_tar_name},
    ShardKind{Format::tfrecord, "a TFRecord file", "TFRecord files", is_tfrecord_name},
    ShardKind{Format::array_record, "an ArrayRecord file", "ArrayRecord files", is_array_record_name},
    ShardKind{Format::larder, "a packed file", "packed files", is_packed_name},
    ShardKind{Format::parquet, "a Parquet file", "Parquet files", is_parquet_name, is_hidden_path}};

bool all_are_shards(const ShardKind& kind, const ObjectListing& listing) {
    bool has_shard = false;
    for (const ObjectListing::Object& object : listing.objects) {
        const std::string_view path = listing.path(object);
        if (kind.ignores(path)) continue;
        if (!kind.is_shard(file_name(path))) return false;
        has_shard = true;
    }
    return has_shard;
}

struct SplitListing {
    std::vector<std::string_view> shards;
    std::vector<std::string_view> others;
};

SplitListing split_listing(const ShardKind& kind, const ObjectListing& listing) {
    SplitListing split;
    for (const ObjectListing::Object& object : listing.objects) {
        const std::string_view path = listing.path(object);
        if (kind.ignores(path)) continue;
        (kind.is_shard(file_name(path)) ? split.shards : split.others).push_back(path);
    }
    return split;
}

std::string files_are(std::size_t count, const std::string& singular, const std::string& plural) {
    return count == 1 ? "is " + singular : "are " + plural;
}

std::string describe_doubt(const ShardKind& kind, const SplitListing& split) {
    const std::size_t shards = split.shards.size();
    const std::size_t others = split.others.size();
    std::string text = std::to_string(shards) + " of " + std::to_string(shards + others) + " files " +
                       files_are(shards, kind.singular, kind.plural) + ", but " + std::string(split.others.front());
    if (others > 1) text += " and " + std::to_string(others - 1) + " more";
    return text + (others == 1 ? " is not" : " are not") + ": each file is taken as one sample (raw); give --format " +
           std::string(name(kind.format)) +
           " to read the samples in them and leave the others out, or --format raw if that is intended";
}

bool has_index(const ObjectListing& listing) {
    return std::ranges::any_of(listing.objects, [&](const ObjectListing::Object& object) {
        return file_name(listing.path(object)) == "index.json";
    });
}

bool has_suffix(const ObjectListing& listing, std::string_view suffix) {
    return std::ranges::any_of(
        listing.objects, [&](const ObjectListing::Object& object) { return listing.path(object).ends_with(suffix); });
}

}  // namespace

bool may_have_samples(const ObjectListing& listing, Format format) {
    switch (format) {
        case Format::mds:
        case Format::litdata: return has_index(listing);
        case Format::megatron: return has_suffix(listing, ".bin") && has_suffix(listing, ".idx");
        // If no file is called .tfrecord, files of any name count as TFRecord files.
        case Format::raw:
        case Format::tfrecord: return !listing.objects.empty();
        case Format::webdataset:
        case Format::larder:
        case Format::array_record:
        case Format::parquet: break;
    }
    return std::ranges::any_of(kShardKinds, [&](const ShardKind& kind) {
        return kind.format == format && !split_listing(kind, listing).shards.empty();
    });
}

MixedListing mixed_listing(const ObjectListing& listing, Format format) {
    for (const ShardKind& kind : kShardKinds) {
        if (format != Format::raw && format != kind.format) continue;
        SplitListing split = split_listing(kind, listing);
        if (split.shards.empty() || split.others.empty()) continue;
        if (format != Format::raw) return {.odd_paths = std::move(split.others), .doubt = {}};
        std::string doubt = describe_doubt(kind, split);
        const bool few_shards = split.shards.size() < split.others.size();
        return {.odd_paths = std::move(few_shards ? split.shards : split.others), .doubt = std::move(doubt)};
    }
    return {};
}

Result<Format> detect_format(ObjectSource& source, const ObjectListing& listing) {
    std::string first_index;
    for (const ObjectListing::Object& object : listing.objects) {
        const std::string_view path = listing.path(object);
        const std::string_view name = file_name(path);
        if (name == "index.json" && (first_index.empty() || path == name)) first_index = path;
    }
    if (!first_index.empty()) {
        const auto format = format_of_index(source, first_index);
        if (!format) return std::unexpected(format.error());
        if (*format) return **format;
    }
    for (const ShardKind& kind : kShardKinds) {
        if (all_are_shards(kind, listing)) return kind.format;
    }
    if (is_megatron(listing)) return Format::megatron;
    return Format::raw;
}

}  // namespace larder::cache
