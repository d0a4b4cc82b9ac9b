#include "cache/store/compression.h"

#include <charconv>

namespace larder::cache {
namespace {

constexpr int kLevelDefault = 3;
constexpr int kLevelAutomatic = 1;

}  // namespace

Result<Compression> parse_compression(std::string_view text) {
    if (text == "none") return Compression{};
    if (text == "auto") return Compression{CompressionKind::automatic, kLevelAutomatic};
    if (text == "zstd") return Compression{CompressionKind::zstd, kLevelDefault};
    int level = 0;
    if (text.starts_with("zstd:")) {
        const char* end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data() + 5, end, level);
        if (error == std::errc{} && rest == end && level >= 1 && level <= kZstdLevelMax) {
            return Compression{CompressionKind::zstd, level};
        }
    }
    return fail(ErrorCode::invalid_argument, "compression \"" + std::string(text) +
                                                 "\" is not none, auto, zstd or zstd:LEVEL with a level of 1 to " +
                                                 std::to_string(kZstdLevelMax));
}

std::string format_compression(const Compression& compression) {
    switch (compression.kind) {
        case CompressionKind::none: return "none";
        case CompressionKind::automatic: return "auto";
        case CompressionKind::zstd: break;
    }
    return "zstd:" + std::to_string(compression.level);
}

void CompressionChoice::note(std::uint32_t raw_bytes, std::uint32_t stored_bytes) {
    raw_bytes_ += raw_bytes;
    stored_bytes_ += stored_bytes;
    if (++tried_ == kSampleBlocks) failed_ = stored_bytes_ > raw_bytes_ - raw_bytes_ / 10;
}

}  // namespace larder::cache
