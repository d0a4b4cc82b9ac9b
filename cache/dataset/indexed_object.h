#pragma once

// What one object of a sharded dataset adds to its index, whatever the format: where its samples are and how they
// divide into blocks. BlockGrouper makes blocks of samples as the user wished; `append_all` puts finished objects into
// the dataset's content. Plain values, one thread each.

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
    std::vector<std::uint32_t> checksums;           // of the blocks, or none
    std::uint64_t empty_samples = 0;                // left out: there is nothing to train on
    std::uint64_t left_over_bytes = 0;              // at the end, too few for a window of tokens
    std::uint64_t members_not_files = 0;            // of a tar, left out: links, special files
    std::uint64_t members_without_key = 0;          // of a tar, left out: they belong to no sample
    std::string shared;                             // what it says that all of the dataset must, as its indexer has it
};

class BlockGrouper {
public:
    // Both outlive it.
    BlockGrouper(const BlockGoal& goal, IndexedObject& object) : goal_(goal), object_(object) {}

    // Samples come in the order of the file and do not overlap. An empty one is counted and left out.
    Result<void> add(std::uint64_t offset, std::uint64_t bytes);

private:
    const BlockGoal& goal_;
    IndexedObject& object_;
};

// The object as one block, whose samples are found by their place in it; `raw_bytes` is what it has once decompressed,
// 0 for an object that is not compressed.
Result<void> make_one_block(IndexedObject& object, std::uint64_t sample_count, std::uint64_t raw_bytes);

// Puts them into `content`, each one's memory freed on the way, and what was left out into `notes`. An object without
// samples is left out; when nothing is left the error names `what`.
Result<void> append_all(DatasetContent& content, std::vector<IndexedObject> objects, std::vector<std::string>& notes,
                        const std::string& what);

}  // namespace larder::cache
