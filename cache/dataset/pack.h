#pragma once

// Packs a dataset of any format that can be read into another layout: WebDataset shards (NAME-000000.tar, ...) or
// packed files (NAME-000000.larder, see cache/protocol/packed.h). The samples of a raw dataset (in the order of
// index_raw.h) are spread over the shards in a pseudo-random order that is always the same, so that a block of
// neighbours is no single class; those of other formats keep their order, as what was shuffled when it was written need
// not be read at random.
//
// What a sample becomes in a tar is pack_members.h; in a packed file it keeps the bytes it has, except that a file of a
// raw dataset becomes what it would be in a tar. Times and owners are zero: equal input gives equal bytes.
//
// The shards appear together, when all are written and synced: the work is done in a directory beside the destination,
// which takes its name at the end and is removed on any failure.

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"

namespace larder::cache {

struct PackRequest {
    std::string source;  // a directory or URL, as IndexRequest::url
    RemoteOptions remote;
    HttpTransfers* transfers = nullptr;                      // needed for http(s):// and s3://
    std::optional<protocol::Format> source_format;           // none: as the files look
    std::uint32_t tokens_per_sample = 0;                     // of sources of tokens, as IndexRequest has it
    std::string destination;                                 // directory to make; an empty one may stand there
    protocol::Format format = protocol::Format::webdataset;  // or larder
    std::string shard_name = "shard";
    std::uint64_t shard_bytes = std::uint64_t{256}
                                << 20;  // a shard ends before it grows past this, after one sample at least
    // Of packed files: how much a block holds, and how it is compressed (none: not at all).
    BlockGoal block = {.target = protocol::BlockTarget::bytes, .bytes = std::uint64_t{4} << 20};
    std::optional<int> zstd_level;
};

struct PackReport {
    std::uint64_t shard_count = 0;
    std::uint64_t sample_count = 0;
    std::uint64_t class_count = 0;
    std::uint64_t payload_bytes = 0;  // of the source's blocks
    protocol::Format source_format = protocol::Format::raw;
    std::vector<std::string> notes;  // what was left out and why
};

// `progress` counts samples as its objects.
Result<PackReport> pack_dataset(const PackRequest& request, const IndexProgressCallback& progress,
                                std::stop_token stop);

}  // namespace larder::cache
