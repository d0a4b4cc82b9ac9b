#pragma once

// Writes one packed file (cache/protocol/packed.h). The writer collects samples until a block is full, and writes the
// index after the last block. If compression is on, a block is stored compressed if that saves more than 10 %. Equal
// samples give equal bytes. Before `finish` the header is zeros, and the file is not valid. One thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cache/protocol/packed.h"

struct ZSTD_CCtx_s;

namespace larder::cache {

struct PackedOptions {
    protocol::Format sample_format = protocol::Format::webdataset;
    std::string format_info;
    std::uint32_t block_bytes = std::uint32_t{4} << 20;  // a block ends before it exceeds this; 0: one sample each
    std::optional<int> zstd_level;                       // none: no compression
};

class PackedWriter {
public:
    static Result<PackedWriter> create(const std::string& path, PackedOptions options);

    Result<void> add(std::span<const std::byte> sample);
    // Writes the last block, the index and the header, and syncs the file. Requires at least one sample.
    Result<void> finish();
    // Bytes written to the file plus those of the unfinished block, uncompressed.
    std::uint64_t bytes() const { return offset_ + block_.size(); }
    // At most protocol::kPackedSamplesMax may be added.
    std::uint32_t sample_count() const { return sample_count_; }

private:
    struct Free {
        void operator()(ZSTD_CCtx_s* context) const;
    };
    PackedWriter(std::string path, FileDescriptor file, PackedOptions options)
        : path_(std::move(path)), file_(std::move(file)), options_(std::move(options)) {}
    bool fits(std::size_t sample_bytes) const;
    Result<void> end_block();
    // Compresses the block. Returns false if compression is off or saves too little.
    Result<bool> compress();
    Result<void> write(std::uint64_t offset, std::span<const std::byte> bytes);

    std::string path_;
    FileDescriptor file_;
    PackedOptions options_;
    std::unique_ptr<ZSTD_CCtx_s, Free> context_;
    std::uint64_t offset_ = protocol::kPackedBlockAlignment;  // file offset of the next block
    std::uint32_t sample_count_ = 0;
    std::vector<std::byte> block_;
    std::vector<std::byte> compressed_;
    std::vector<protocol::PackedSample> block_samples_;
    std::vector<protocol::PackedBlock> blocks_;
    std::vector<protocol::PackedSample> rows_;
};

}  // namespace larder::cache
