#pragma once

// The part of indexing that MDS and LitData share, after their index.json is read: indexes a list of files with tables
// of samples (cache/protocol/sample_table.h). The files are uncompressed, compressed whole, or made of zstd frames
// (framed).

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/index_journal.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/remote/object_source.h"

namespace larder::cache {

struct TableFile {
    std::string path;             // the uncompressed or framed file; "": none
    std::string compressed_path;  // the file compressed whole with zstd; "": none. `path` is preferred if both exist
    std::uint64_t sample_count = 0;
    std::uint64_t raw_bytes = 0;                   // decompressed size of the file
    std::uint64_t raw_bytes_of_older_writers = 0;  // a second valid decompressed size (of older writers); 0: none
    bool framed = false;                           // `path` is made of zstd frames (cache/dataset/framed_chunk.h)
};

struct TableFiles {
    std::vector<TableFile> files;
    std::uint64_t window_bytes = 0;  // 0: samples are those of the table; else: windows of this many bytes
};

// Fails if the index names a file twice.
Result<void> check_distinct(std::span<const TableFile> files);

// Opens the object. Errors name it.
Result<std::unique_ptr<ObjectReader>> open_named(ObjectSource& source, const std::string& path);

// Fills the objects, blocks and samples of `content`, and adds to `notes`.
Result<void> index_tables(ObjectSource& source, const TableFiles& files, const BlockGoal& goal, DatasetContent& content,
                          std::vector<std::string>& notes, const IndexProgressCallback& progress, std::stop_token stop,
                          IndexJournal* journal = nullptr);

}  // namespace larder::cache
