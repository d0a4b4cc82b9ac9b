#pragma once

// Iterates over the samples of the dataset to pack. Indexes the dataset, then reads whole blocks, a few of them ahead
// (blocks_ahead.h), and splits them into samples. One thread.

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/pack.h"

namespace larder::cache {

struct SourceSample {
    std::uint64_t index = 0;  // in the manifest
    std::string_view path;    // of the sample's object
    std::uint32_t label = protocol::kNoLabel;
    std::span<const std::byte> bytes;
    std::uint64_t block_bytes_read = 0;  // first sample of a block: length of the block; else 0
};

class PackSource {
public:
    // Indexes the source and writes the manifest to `manifest_path`. The caller removes that file.
    static Result<PackSource> open(const PackRequest& request, const std::string& manifest_path, std::stop_token stop);

    const protocol::Manifest& manifest() const { return manifest_; }
    const IndexReport& report() const { return report_; }
    // Calls `visit` for each sample. Stops at the first error and returns it.
    Result<void> for_each_sample(const std::function<Result<void>(const SourceSample&)>& visit);

private:
    PackSource(IndexReport report, protocol::Manifest manifest)
        : report_(std::move(report)), manifest_(std::move(manifest)) {}
    Result<void> visit_block(std::uint32_t block, std::span<const std::byte> bytes,
                             const std::function<Result<void>(const SourceSample&)>& visit);

    IndexReport report_;
    protocol::Manifest manifest_;
};

}  // namespace larder::cache
