#pragma once

// Packs a dataset of any readable format into another layout: WebDataset shards (NAME-000000.tar, ...) or packed files
// (NAME-000000.larder, see cache/protocol/packed.h). The samples of a raw dataset are written in a pseudo-random order,
// so that a block does not hold a single class; the order is the same in every run. Samples of other formats keep their
// order: their writer has shuffled them already, and sequential reads are faster.
//
// pack_members.h describes the members of a sample in a tar. In a packed file a sample keeps its bytes, except that a
// file of a raw dataset is stored as its tar members. Times and owners are zero, so that equal input gives equal bytes.
//
// All shards appear at once, after all are written and synced: they are written to a temporary directory beside the
// destination, which is renamed to the destination at the end and removed on any failure.

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"

namespace larder::cache {

struct PackRequest {
    DatasetDefinition source;                                // its block goal and compression do not matter
    HttpTransfers* transfers = nullptr;                      // needed for all but file://
    std::string destination;                                 // directory to create; may exist if it is empty
    protocol::Format format = protocol::Format::webdataset;  // or larder
    std::string shard_name = "shard";
    std::uint64_t shard_bytes = std::uint64_t{256} << 20;  // largest shard; a larger sample gets a shard of its own
    // For packed files only: the size of a block, and its compression (none: uncompressed).
    BlockGoal block = {.target = protocol::BlockTarget::bytes, .bytes = std::uint64_t{4} << 20};
    std::optional<int> zstd_level;
};

struct PackReport {
    std::uint64_t shard_count = 0;
    std::uint64_t sample_count = 0;
    std::uint64_t class_count = 0;
    std::uint64_t payload_bytes = 0;  // sum over the source's blocks
    protocol::Format source_format = protocol::Format::raw;
    std::vector<std::string> notes;  // files left out and why
};

// `progress` counts samples as its objects.
Result<PackReport> pack_dataset(const PackRequest& request, const IndexProgressCallback& progress,
                                std::stop_token stop);

}  // namespace larder::cache
