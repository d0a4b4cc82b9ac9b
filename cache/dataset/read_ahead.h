#pragma once

// Small reads out of larger ones, for parsers that step over payloads: where what is wanted lies close together the
// next comes along, else little more than is asked for is read. One thread.

#include <vector>

#include "cache/protocol/byte_source.h"

namespace larder::cache {

class ReadAhead final : public protocol::ByteSource {
public:
    explicit ReadAhead(protocol::ByteSource& source, std::size_t near_bytes = 16384)
        : source_(source), near_bytes_(near_bytes) {}

    std::uint64_t size_bytes() const override { return source_.size_bytes(); }
    Result<std::span<const std::byte>> read(std::uint64_t offset, std::size_t bytes) override;

private:
    protocol::ByteSource& source_;
    std::size_t near_bytes_;  // what is no further away is read along with what lies between
    std::uint64_t last_end_ = 0;
    std::uint64_t buffer_offset_ = 0;
    std::span<const std::byte> buffer_;  // the source's, valid until it is asked again
};

}  // namespace larder::cache
