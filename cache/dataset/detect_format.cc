#include "cache/dataset/detect_format.h"

#include <algorithm>
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

}  // namespace

Result<Format> detect_format(ObjectSource& source, const ObjectListing& listing) {
    std::string first_index;
    bool all_tars = !listing.objects.empty();
    bool all_tfrecords = all_tars;
    bool all_packed = all_tars;
    std::string_view first_parquet;
    for (const ObjectListing::Object& object : listing.objects) {
        const std::string_view path = listing.path(object);
        const std::string_view name = file_name(path);
        all_tars = all_tars && (is_shard_name(name) || is_compressed_shard_name(name));
        all_tfrecords = all_tfrecords && is_tfrecord_name(name);
        if (first_parquet.empty() && name.ends_with(".parquet")) first_parquet = path;
        all_packed = all_packed && is_packed_name(name);
        if (name == "index.json" && (first_index.empty() || path == name)) first_index = path;
    }
    if (!first_index.empty()) {
        const auto format = format_of_index(source, first_index);
        if (!format) return std::unexpected(format.error());
        if (*format) return **format;
    }
    if (all_tars) return Format::webdataset;
    if (all_tfrecords) return Format::tfrecord;
    if (all_packed) return Format::larder;
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
