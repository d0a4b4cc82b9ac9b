#pragma once

// Writes what an indexer found as a manifest file: sorts the objects by path, gives every block its id, and streams the
// arrays to a temporary file that is synced and renamed, so that a manifest is there whole or not at all.
//
// Block ids carry the cache over from one version of a dataset to the next: an object that kept its path, size, mtime
// and block boundaries keeps its ids; every other object gets fresh ones, never used before for this dataset. So does
// one whose remote says nothing of its version (mtime 0): the same size is no sign of the same bytes.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/protocol/manifest.h"

namespace larder::cache {

// What an indexer found, in any order. Names share one string, because a dataset may have ten million of them.
struct DatasetContent {
    struct Object {
        std::uint64_t name_offset;  // into `names`
        std::uint64_t size_bytes;
        std::int64_t mtime_ns;
        std::uint32_t name_bytes;
        std::uint32_t label;        // into `classes`, or protocol::kNoLabel
        std::uint32_t first_block;  // into `blocks`; of raw: into `checksums`
        std::uint32_t block_count;
    };
    struct Block {
        std::uint64_t offset;  // in its object
        std::uint32_t length;
        std::uint32_t first_sample;  // into `samples`
        std::uint32_t sample_count;
        std::uint32_t raw_bytes = 0;  // of a compressed block; see protocol::ManifestBlock
    };

    std::string names;
    std::vector<Object> objects;
    std::vector<Block> blocks;                      // empty for raw: one block an object
    std::vector<protocol::ManifestSample> samples;  // empty for raw: one sample an object
    bool samples_by_ordinal = false;                // blocks count their samples, and `samples` is empty
    std::vector<std::uint32_t> checksums;  // none, or of each block; of raw: of the object with this first_block
    std::vector<std::string> classes;
    std::string format_info;           // as protocol::encode makes it
    protocol::Format sample_format{};  // of larder: see protocol::ManifestHeader

    std::uint64_t sample_count() const;
    std::string_view name(const Object& object) const {
        return std::string_view(names).substr(object.name_offset, object.name_bytes);
    }
    void add_object(std::string_view path, std::uint64_t size_bytes, std::int64_t mtime_ns, std::uint32_t label);
};

// Whether the object holds the bytes it held before, by what its remote says of it. Equal paths are the caller's to see
// to, and equal boundaries of blocks.
bool is_same_version(const DatasetContent::Object& now, const protocol::Object& before);

struct ManifestOptions {
    std::string path;  // of the file to write
    std::string url;
    std::uint64_t dataset_id = 0;
    std::uint64_t version = 1;
    std::int64_t created_unix_ns = 0;
    protocol::Format format = protocol::Format::raw;
    protocol::BlockTarget block_target = protocol::BlockTarget::sample;
    std::uint64_t block_target_bytes = 0;
    const protocol::Manifest* previous = nullptr;  // of the same dataset
};

struct ManifestSummary {
    std::uint64_t object_count = 0;
    std::uint64_t block_count = 0;
    std::uint64_t sample_count = 0;
    std::uint64_t class_count = 0;
    std::uint64_t total_bytes = 0;
    std::uint64_t objects_carried_over = 0;  // whose cached blocks stay good
    std::uint64_t bytes_carried_over = 0;
};

// Sorts `content.objects` on the way.
Result<ManifestSummary> write_manifest(DatasetContent& content, const ManifestOptions& options);

}  // namespace larder::cache
