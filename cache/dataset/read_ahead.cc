#include "cache/dataset/read_ahead.h"

#include <algorithm>

namespace larder::cache {
namespace {

constexpr std::size_t kFarBytes = 512;

}  // namespace

Result<std::span<const std::byte>> ReadAhead::read(std::uint64_t offset, std::size_t bytes) {
    const std::uint64_t buffer_end = buffer_offset_ + buffer_.size();
    if (offset < buffer_offset_ || offset > buffer_end || bytes > buffer_end - offset) {
        const bool is_near = offset >= last_end_ && offset - last_end_ <= near_bytes_;
        const std::uint64_t wanted = std::max(bytes, is_near ? read_ahead_bytes_ : kFarBytes);
        read_ahead_bytes_ =
            is_near ? std::min(2 * read_ahead_bytes_, read_ahead_bytes_max_) : kFirstReadAheadFactor * near_bytes_;
        buffer_ = {};
        auto filled = source_.read(offset, std::min<std::uint64_t>(wanted, source_.size_bytes() - offset));
        if (!filled) return filled;
        buffer_ = *filled;
        buffer_offset_ = offset;
    }
    last_end_ = offset + bytes;
    return buffer_.subspan(offset - buffer_offset_, bytes);
}

}  // namespace larder::cache
