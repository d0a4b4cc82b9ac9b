#pragma once

// Writes the result of an indexer as a manifest file. The writer sorts the objects by path, assigns a block id to every
// block, and streams the arrays to a temporary file. The file is synced and then renamed, so that a manifest is never
// incomplete.
//
// Block ids carry the cache over from one version of a dataset to the next. An object that kept its path, size, mtime
// and block boundaries keeps its ids. Every other object gets fresh ids, never used before for this dataset. An object
// whose remote has no version for it (mtime 0) always gets fresh ids, because equal sizes do not imply equal bytes.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/dataset_definition.h"
#include "cache/protocol/manifest.h"

namespace larder::cache {

// The result of an indexer, in any order. Names share one string, because a dataset may have ten million names.
struct DatasetContent {
    struct Object {
        std::uint64_t name_offset;  // into `names`
        std::uint64_t size_bytes;
        std::int64_t mtime_ns;
        std::uint32_t name_bytes;
        std::uint32_t label;        // into `classes`, or protocol::kNoLabel
        std::uint32_t first_block;  // into `blocks`; raw: into `checksums`
        std::uint32_t block_count;
    };
    struct Block {
        std::uint64_t offset;  // in its object
        std::uint32_t length;
        std::uint32_t first_sample;  // into `samples`
        std::uint32_t sample_count;
        std::uint32_t raw_bytes = 0;  // decompressed size; 0: not compressed. See protocol::ManifestBlock
    };

    std::string names;
    std::vector<Object> objects;
    std::vector<Block> blocks;                      // empty for raw: an object is one block
    std::vector<protocol::ManifestSample> samples;  // empty for raw: an object is one sample
    bool samples_by_ordinal = false;                // blocks have only a sample_count; `samples` is empty
    std::vector<std::string> block_details;         // empty, or one for each block; see ManifestHeader
    std::vector<std::uint32_t> checksums;           // empty, or one for each block; raw: indexed by Object::first_block
    std::vector<std::string> classes;
    std::string format_info;           // encoded by protocol::encode
    protocol::Format sample_format{};  // for Format::larder; see protocol::ManifestHeader

    std::uint64_t sample_count() const;
    std::string_view name(const Object& object) const {
        return std::string_view(names).substr(object.name_offset, object.name_bytes);
    }
    void add_object(std::string_view path, std::uint64_t size_bytes, std::int64_t mtime_ns, std::uint32_t label);
};

// True if mtime, size and number of blocks are unchanged and the mtime is known. The caller compares paths and block
// boundaries.
bool is_same_version(const DatasetContent::Object& now, const protocol::Object& before);

// The version of a dataset that a manifest describes.
struct ManifestVersion {
    std::string path;  // the file to write
    std::uint64_t dataset_id = 0;
    std::uint64_t version = 1;
    std::int64_t created_unix_ns = 0;
    const protocol::Manifest* previous = nullptr;  // previous version of the same dataset; null: none
};

struct ManifestSummary {
    std::uint64_t object_count = 0;
    std::uint64_t block_count = 0;
    std::uint64_t sample_count = 0;
    std::uint64_t class_count = 0;
    std::uint64_t total_bytes = 0;
    std::uint64_t objects_carried_over = 0;  // objects whose cached blocks stay valid
    std::uint64_t bytes_carried_over = 0;
};

// Writes the manifest. Sorts `content.objects` by path. `definition` is as indexing resolved it: its format is set, and
// the paths of objects are relative to its URL.
Result<ManifestSummary> write_manifest(DatasetContent& content, const DatasetDefinition& definition,
                                       const ManifestVersion& version);

}  // namespace larder::cache
