#pragma once

// What indexing MDS and LitData has in common, once their index.json is read: a list of files with tables of samples
// (cache/protocol/sample_table.h), as they are, compressed whole, or compressed within.

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/index_journal.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/object_source.h"

namespace larder::cache {

struct TableFile {
    std::string path;             // as it is, "" if there is none
    std::string compressed_path;  // by zstd, "" if there is none; where both are there `path` is read
    std::uint64_t sample_count = 0;
    std::uint64_t raw_bytes = 0;      // of the file once decompressed
    std::uint64_t raw_bytes_old = 0;  // another size that is right as well; 0: none
    bool framed = false;              // `path` is compressed within (cache/dataset/framed_chunk.h)
};

struct TableFiles {
    std::vector<TableFile> files;
    std::uint64_t window_bytes = 0;  // not 0: samples are not the table's, but windows of so many bytes
};

// Fills objects, blocks and samples, and adds to `notes`.
Result<void> index_tables(ObjectSource& source, const TableFiles& files, const BlockGoal& goal, DatasetContent& content,
                          std::vector<std::string>& notes, const IndexProgressCallback& progress, std::stop_token stop,
                          IndexJournal* journal = nullptr);

}  // namespace larder::cache
