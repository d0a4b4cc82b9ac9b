#pragma once

// Start-up: what an earlier run left of a dataset on disk. Segments the index knows come with their entries; the tails
// of unsealed ones, and files the index does not know, are scanned record by record (kill -9 may strike between a write
// and its commit). Payload CRCs are not checked here but when a block is first read. Blocking I/O: call it on a
// start-up or worker thread, before the dataset's DatasetStore exists.

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace larder::cache {

class Index;

struct RecoveredBlock {
    std::uint64_t offset;  // of the record in the segment
    std::uint32_t block_id;
    std::uint32_t payload_bytes;
    std::uint32_t payload_crc;
};

struct RecoveredSegment {
    std::uint32_t id = 0;
    std::uint32_t alignment = 0;
    std::uint64_t size_bytes = 0;
    bool sealed = false;
    std::string path;
    FileDescriptor fd;                   // O_DIRECT where the file system allows it
    std::vector<RecoveredBlock> blocks;  // ascending in offset, not overlapping
};

struct RecoveryOptions {
    std::uint64_t dataset_id = 0;
    std::uint32_t block_id_end = 0;  // blocks at or past it are ignored
    std::string segment_directory;
};

struct RecoveryReport {
    std::uint32_t segments = 0;
    std::uint64_t blocks = 0;
    std::uint64_t blocks_scanned = 0;    // of `blocks`, those the index did not know
    std::uint64_t entries_dropped = 0;   // of the index, that did not fit their segment
    std::uint32_t segments_scanned = 0;  // whole, as the index did not know them
    std::uint32_t segments_missing = 0;  // known to the index, their file gone or not theirs
    std::vector<std::string> removed;    // files that were no segments of this dataset, each with the reason
};

struct Recovered {
    std::vector<RecoveredSegment> segments;
    RecoveryReport report;
};

// `index` may be null. What is found by scan is posted to the index.
Result<Recovered> recover_segments(const RecoveryOptions& options, Index* index);

}  // namespace larder::cache
