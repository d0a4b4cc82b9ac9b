#pragma once

// The samples of the dataset that is packed, one after the other: indexes it, then reads its blocks and cuts them up.
// A block is read whole, so memory holds one, decompressed where it is compressed. One thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/pack.h"
#include "cache/object_source.h"
#include "cache/protocol/decompressor.h"

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
    PackSource(IndexReport report, protocol::Manifest manifest);
    Result<std::span<const std::byte>> read(const protocol::Object& object, const protocol::Block& block);
    Result<void> visit_block(std::uint32_t block, const std::function<Result<void>(const SourceSample&)>& visit);

    IndexReport report_;
    protocol::Manifest manifest_;
    std::unique_ptr<ObjectSource> objects_;
    std::unique_ptr<ObjectReader> reader_;  // of the last object read
    std::optional<std::uint32_t> reader_object_;
    protocol::Decompressor decompressor_;
    std::unique_ptr<std::byte[]> raw_;
};

}  // namespace larder::cache
