#pragma once

// Serves small reads from larger ones, for parsers that skip payloads. If consecutive reads are close together, reads
// ahead, and doubles the size of each further read up to a limit. Otherwise reads little more than requested. One
// thread.

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "cache/protocol/byte_source.h"

namespace larder::cache {

class ReadAhead final : public protocol::ByteSource {
public:
    static constexpr std::size_t kFirstReadAheadFactor = 4;

    // A read that begins at most `near_bytes` after the end of the last one triggers read-ahead: kReadsOfNear *
    // near_bytes at first, then up to `read_ahead_bytes_max` while such reads continue.
    explicit ReadAhead(protocol::ByteSource& source, std::size_t near_bytes = 16384,
                       std::size_t read_ahead_bytes_max = 0)
        : source_(source),
          near_bytes_(near_bytes),
          read_ahead_bytes_max_(std::max(read_ahead_bytes_max, kFirstReadAheadFactor * near_bytes)) {}

    std::uint64_t size_bytes() const override { return source_.size_bytes(); }
    Result<std::span<const std::byte>> read(std::uint64_t offset, std::size_t bytes) override;

private:
    protocol::ByteSource& source_;
    std::size_t near_bytes_;
    std::size_t read_ahead_bytes_max_;
    std::size_t read_ahead_bytes_ = kFirstReadAheadFactor * near_bytes_;  // size of the next read-ahead
    std::span<const std::byte> buffer_;  // owned by `source_`, valid until its next read
    std::uint64_t buffer_offset_ = 0;
    std::uint64_t last_end_ = 0;  // end of the last requested range
};

}  // namespace larder::cache
