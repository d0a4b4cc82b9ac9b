#pragma once

// The result of indexing one object, for all formats except raw: its samples and their division into blocks.
// BlockGrouper groups samples into blocks by the block goal. `append_all` adds finished objects to the content of the
// dataset. Plain values; use each from one thread at a time.

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/manifest_writer.h"

namespace larder::cache {

struct IndexedObject {
    std::string path;
    std::uint64_t size_bytes = 0;
    std::int64_t tag = 0;
    std::vector<DatasetContent::Block> blocks;      // first_sample counts within the object
    std::vector<protocol::ManifestSample> samples;  // offsets within their blocks
    std::vector<std::uint32_t> checksums;           // one for each block, or empty
    std::vector<std::string> block_details;         // one for each block, or empty
    std::uint64_t empty_samples = 0;                // left out: an empty sample is useless for training
    std::uint64_t left_over_bytes = 0;              // left out: too few for a window of tokens
    std::uint64_t members_not_files = 0;            // tar members left out: links, special files
    std::uint64_t members_without_key = 0;          // tar members left out: they belong to no sample
    std::string shared;                             // values that all objects must share, encoded by the indexer
};

class BlockGrouper {
public:
    // `goal` and `object` must outlive the grouper.
    BlockGrouper(const BlockGoal& goal, IndexedObject& object) : goal_(goal), object_(object) {}

    // Call in the order of the file; samples must not overlap. An empty sample is counted and left out.
    Result<void> add(std::uint64_t offset, std::uint64_t bytes);

private:
    const BlockGoal& goal_;
    IndexedObject& object_;
};

// Makes the whole object one block, whose samples are found by ordinal (DatasetContent::samples_by_ordinal).
// `raw_bytes`: the decompressed size; 0: the object is not compressed.
Result<void> make_one_block(IndexedObject& object, std::uint64_t sample_count, std::uint64_t raw_bytes);

// Adds `objects` to `content` and frees the memory of each at once. Adds counts of what was left out to `notes`. Leaves
// out objects without samples; fails, naming `what`, if none is left.
Result<void> append_all(DatasetContent& content, std::vector<IndexedObject> objects, std::vector<std::string>& notes,
                        const std::string& what);

}  // namespace larder::cache
