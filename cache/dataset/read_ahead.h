#pragma once

// Small reads out of larger ones, for parsers that step over payloads: where what is wanted lies close together the
// next comes along, the more the longer that goes on; else little more than is asked for is read. One thread.

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "cache/protocol/byte_source.h"

namespace larder::cache {

class ReadAhead final : public protocol::ByteSource {
public:
    static constexpr std::size_t kReadsOfNear = 4;

    // `near_bytes`: what is no further away is read along with what lies between; four times as much at once, and up to
    // `at_once_bytes_max` where one such read follows the other.
    explicit ReadAhead(protocol::ByteSource& source, std::size_t near_bytes = 16384, std::size_t at_once_bytes_max = 0)
        : source_(source),
          near_bytes_(near_bytes),
          at_once_bytes_max_(std::max(at_once_bytes_max, kReadsOfNear * near_bytes)) {}

    std::uint64_t size_bytes() const override { return source_.size_bytes(); }
    Result<std::span<const std::byte>> read(std::uint64_t offset, std::size_t bytes) override;

private:
    protocol::ByteSource& source_;
    std::size_t near_bytes_;
    std::size_t at_once_bytes_max_;
    std::size_t at_once_bytes_ = kReadsOfNear * near_bytes_;  // the next time
    std::span<const std::byte> buffer_;                       // the source's, good until its next read
    std::uint64_t buffer_offset_ = 0;
    std::uint64_t last_end_ = 0;  // of what was asked for
};

}  // namespace larder::cache
