#pragma once

// Decides whether the blocks of a dataset are compressed when they are admitted. A Compression is what the user chose.
// A CompressionChoice decides what is done: it tries a sample of blocks first, and if they do not shrink by more than
// 10 % (images, say), it tries no more, so that incompressible data costs nothing. `automatic` also leaves a
// dataset that fits its quota uncompressed. Plain values; a choice belongs to one thread.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace larder::cache {

enum class CompressionKind : std::uint8_t { none, zstd, automatic };

struct Compression {
    CompressionKind kind = CompressionKind::none;
    int level = 0;  // of zstd

    bool operator==(const Compression&) const = default;
};

inline constexpr int kZstdLevelMax = 19;

// "none", "zstd:LEVEL" (level 1 to 19; "zstd" is level 3) or "auto".
Result<Compression> parse_compression(std::string_view text);
std::string format_compression(const Compression& compression);

// The largest compressed size at which a block is kept compressed.
constexpr std::uint32_t compressed_bytes_max(std::uint32_t raw_bytes) {
    return raw_bytes - raw_bytes / 10 - (raw_bytes > 0 ? 1 : 0);
}

class CompressionChoice {
public:
    static constexpr std::uint32_t kSampleBlocks = 16;

    explicit CompressionChoice(Compression requested) : requested_(requested) {}

    // True if the next block is to be tried. `dataset_bytes` is the uncompressed size of the dataset.
    bool wants(std::uint64_t dataset_bytes, std::uint64_t quota_bytes) const {
        if (requested_.kind == CompressionKind::none || failed_) return false;
        return requested_.kind == CompressionKind::zstd || dataset_bytes > quota_bytes;
    }
    // Records a block that was tried. `stored_bytes` is its compressed size, or `raw_bytes` if it did not shrink
    // enough.
    void note(std::uint32_t raw_bytes, std::uint32_t stored_bytes);
    // Stored bytes per byte of the blocks tried; 1 before the first, and if compression is given up.
    double stored_ratio() const {
        return failed_ || raw_bytes_ == 0 ? 1 : static_cast<double>(stored_bytes_) / static_cast<double>(raw_bytes_);
    }
    const Compression& requested() const { return requested_; }
    // True if the sample has shown that compression gains nothing.
    bool failed() const { return failed_; }

private:
    Compression requested_;
    std::uint64_t tried_ = 0;
    std::uint64_t raw_bytes_ = 0;
    std::uint64_t stored_bytes_ = 0;
    bool failed_ = false;
};

}  // namespace larder::cache
