#include "cache/dataset/detect_format.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "cache/dataset/index_json.h"
#include "cache/dataset/index_packed.h"
#include "cache/dataset/index_tfrecord.h"
#include "cache/dataset/index_webdataset.h"

namespace larder::cache {

using protocol::Format;

namespace {

std::string_view file_name(std::string_view path) {
    return path.substr(path.rfind('/') + 1);
}

// What writes an index.json of this kind; nullopt: nobody we know.
Result<std::optional<Format>> format_of_index(ObjectSource& source, const std::string& path) {
    boost::json::value memory;
    const auto index = read_index_json(source, path, memory);
    // An index.json that is somebody's sample is no error.
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

// Each .bin has its .idx, and there is nothing else.
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

// Formats whose files are known by their names alone.
struct ShardKind {
    Format format;
    const char* plural;
    bool (*is_shard)(std::string_view name);
};
constexpr std::array kShardKinds{ShardKind{Format::webdataset, "tars", is_tar_name},
                                 ShardKind{Format::tfrecord, "TFRecord files", is_tfrecord_name},
                                 ShardKind{Format::larder, "packed files", is_packed_name}};

bool all_are(const ShardKind& kind, const ObjectListing& listing) {
    return !listing.objects.empty() && std::ranges::all_of(listing.objects, [&](const ObjectListing::Object& object) {
        return kind.is_shard(file_name(listing.path(object)));
    });
}

std::vector<std::string_view> odd_of(const ShardKind& kind, const ObjectListing& listing) {
    std::vector<std::string_view> odd;
    for (const ObjectListing::Object& object : listing.objects) {
        if (!kind.is_shard(file_name(listing.path(object)))) odd.push_back(listing.path(object));
    }
    return odd;
}

}  // namespace

bool has_shards(const ObjectListing& listing, Format format) {
    return std::ranges::any_of(kShardKinds, [&](const ShardKind& kind) {
        return kind.format == format && odd_of(kind, listing).size() < listing.objects.size();
    });
}

MixedListing mixed_listing(const ObjectListing& listing, Format format) {
    for (const ShardKind& kind : kShardKinds) {
        if (format != Format::raw && format != kind.format) continue;
        std::vector<std::string_view> odd = odd_of(kind, listing);
        const std::size_t shards = listing.objects.size() - odd.size();
        if (odd.empty() || shards == 0) continue;
        if (format != Format::raw) return {.odd = std::move(odd), .doubt = {}};
        std::string doubt = std::to_string(shards) + " of " + std::to_string(listing.objects.size()) + " files are " +
                            kind.plural + ", but " + std::string(odd.front()) +
                            (odd.size() > 1 ? " and " + std::to_string(odd.size() - 1) + " more are not" : " is not") +
                            ": each file is taken as one sample (raw); say --format " + std::string(name(kind.format)) +
                            " to read the samples in them and leave the others out, or --format raw if it is meant so";
        return {.odd = std::move(odd), .doubt = std::move(doubt)};
    }
    return {};
}

Result<Format> detect_format(ObjectSource& source, const ObjectListing& listing) {
    std::string first_index;
    std::string_view first_parquet;
    for (const ObjectListing::Object& object : listing.objects) {
        const std::string_view path = listing.path(object);
        const std::string_view name = file_name(path);
        if (first_parquet.empty() && name.ends_with(".parquet")) first_parquet = path;
        if (name == "index.json" && (first_index.empty() || path == name)) first_index = path;
    }
    if (!first_index.empty()) {
        const auto format = format_of_index(source, first_index);
        if (!format) return std::unexpected(format.error());
        if (*format) return **format;
    }
    for (const ShardKind& kind : kShardKinds) {
        if (all_are(kind, listing)) return kind.format;
    }
    if (is_megatron(listing)) return Format::megatron;
    if (!first_parquet.empty()) {
        return fail(ErrorCode::unsupported,
                    std::string(first_parquet) +
                        ": Parquet is not read; write the dataset as MDS or LitData, or say --format raw to have each "
                        "file as one sample, as it is");
    }
    return Format::raw;
}

}  // namespace larder::cache
