#pragma once

// The samples of the dataset that is packed, one after the other: indexes it, then reads its blocks and cuts them up.
// A block is read whole, and a few are read ahead (blocks_ahead.h). One thread.

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
    std::string_view path;    // of its object
    std::uint32_t label = protocol::kNoLabel;
    std::span<const std::byte> bytes;
    std::uint64_t block_bytes_read = 0;  // with the first sample of a block: its length
};

class PackSource {
public:
    // The manifest is written to `manifest_path`, and is the caller's to remove.
    static Result<PackSource> open(const PackRequest& request, const std::string& manifest_path, std::stop_token stop);

    const protocol::Manifest& manifest() const { return manifest_; }
    const IndexReport& report() const { return report_; }
    // Until the first error, which it returns.
    Result<void> each(const std::function<Result<void>(const SourceSample&)>& visit);

private:
    PackSource(IndexReport report, protocol::Manifest manifest)
        : report_(std::move(report)), manifest_(std::move(manifest)) {}
    Result<void> visit_block(std::uint32_t block, std::span<const std::byte> bytes,
                             const std::function<Result<void>(const SourceSample&)>& visit);

    IndexReport report_;
    protocol::Manifest manifest_;
};

}  // namespace larder::cache
