#pragma once

// Packs a raw dataset (a directory tree of files) into WebDataset shards: NAME-000000.tar, NAME-000001.tar, ... Sample
// i of the raw dataset (in the order of index_raw.h) becomes the member "<i, nine digits>.<the file's suffix>" and,
// where it has a label, "<i>.cls" with the class index as decimal text. Samples are spread over the shards in a
// pseudo-random order that is always the same, so that a block of neighbours is no single class. Times and owners are
// zero: equal input gives equal bytes.
//
// Archives are written by libarchive. The shards appear together, when all are written and synced: the work is done in
// a directory beside the destination, which takes its name at the end and is removed on any failure.

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"

namespace larder::cache {

struct PackRequest {
    std::string source;       // directory of the raw dataset
    std::string destination;  // directory to make; an empty one may stand there
    std::string shard_name = "shard";
    std::uint64_t shard_bytes = std::uint64_t{256}
                                << 20;  // a shard ends before it grows past this, after one sample at least
};

struct PackReport {
    std::uint64_t shard_count = 0;
    std::uint64_t sample_count = 0;
    std::uint64_t class_count = 0;
    std::uint64_t payload_bytes = 0;  // of the files
    std::vector<std::string> notes;   // what was left out and why
};

Result<PackReport> pack_webdataset(const PackRequest& request, const IndexProgressCallback& progress,
                                   std::stop_token stop);

}  // namespace larder::cache
