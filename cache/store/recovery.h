#pragma once

// Start-up: what an earlier run left of a dataset on disk. Segments the index knows come with their entries; the tails
// of unsealed ones, and files the index does not know, are scanned (kill -9 may strike between a write and its commit).
// Entries that do not lie in their segment, and files that are no segment of the dataset, are removed. Payload CRCs are
// not checked here but when a block is first read. Blocking I/O: call it on a start-up or worker thread, before the
// dataset's DatasetStore exists.

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cache/store/stored_block.h"

namespace larder::cache {

class Index;

struct RecoveredSegment : StoredSegment {
    std::string path;
    FileDescriptor fd;  // O_DIRECT where the file system allows it
};

struct RecoveryReport {
    std::uint32_t segments = 0;
    std::uint64_t blocks = 0;
    std::uint64_t blocks_scanned = 0;    // of `blocks`, those the index did not know
    std::uint64_t entries_dropped = 0;   // of the index, that did not fit their segment
    std::uint32_t segments_scanned = 0;  // whole, as the index did not know them
    std::uint32_t segments_missing = 0;  // known to the index, their file gone
    std::string index_problem;           // why nothing could be read from the index
    std::vector<std::string> removed;    // files, each with the reason
};

struct Recovered {
    std::vector<RecoveredSegment> segments;
    RecoveryReport report;
};

// `index` may be null. What the scan finds is posted to it.
Result<Recovered> recover_segments(std::uint64_t dataset_id, const std::string& segment_directory, Index* index);

}  // namespace larder::cache
