#include "cache/dataset/framed_chunk.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "cache/protocol/little_endian.h"
#include "cache/protocol/manifest.h"

namespace larder::cache {
namespace {

constexpr std::array<char, 8> kChunkMagic{'L', 'D', 'F', 'Z', '0', '1', '\0', '\0'};
constexpr std::uint16_t kChunkVersion = 1;
constexpr std::size_t kTableReadBytes = 1 << 20;

struct ChunkHead {
    std::array<char, 8> magic;
    std::uint16_t version;
    std::uint16_t flags;
    std::uint32_t samples;
    std::uint32_t samples_per_frame;
    std::uint32_t frames;
};
static_assert(sizeof(ChunkHead) == 24);

struct Frame {
    std::uint32_t first_sample;
    std::uint32_t samples;
    std::uint64_t offset;
    std::uint32_t bytes;
    std::uint32_t raw_bytes;
};
static_assert(sizeof(Frame) == 24);

std::unexpected<Error> bad_chunk(std::uint64_t offset, const std::string& what) {
    return fail(ErrorCode::corrupt, "at offset " + std::to_string(offset) + ": " + what);
}

// Reads `count` values at `offset`, in pieces. The values must lie within the file.
template <typename T>
Result<std::vector<T>> read_array(ObjectReader& reader, std::uint64_t offset, std::size_t count,
                                  const ObjectProgress& progress) {
    std::vector<T> array(count);
    const auto bytes = std::as_writable_bytes(std::span(array));
    for (std::size_t at = 0; at < bytes.size(); at += kTableReadBytes) {
        if (!progress(0)) return fail(ErrorCode::cancelled, "indexing was cancelled");
        const auto piece = reader.read(offset + at, std::min(kTableReadBytes, bytes.size() - at));
        if (!piece) return std::unexpected(piece.error());
        std::ranges::copy(*piece, bytes.begin() + static_cast<std::ptrdiff_t>(at));
    }
    return array;
}

Result<ChunkHead> read_head(ObjectReader& reader, std::uint64_t expected_samples) {
    const std::uint64_t file_bytes = reader.size_bytes();
    if (file_bytes < sizeof(ChunkHead)) {
        return bad_chunk(0, "it has " + std::to_string(file_bytes) + " bytes, too few for a chunk of zstd frames");
    }
    const auto bytes = reader.read(0, sizeof(ChunkHead));
    if (!bytes) return std::unexpected(bytes.error());
    const auto head = protocol::load<ChunkHead>(*bytes);
    if (head.magic != kChunkMagic) return bad_chunk(0, "it is not a chunk of zstd frames, although its index says so");
    if (head.version != kChunkVersion) {
        return fail(ErrorCode::unsupported,
                    "its frames are of version " + std::to_string(head.version) + "; only version 1 is read");
    }
    if (head.samples != expected_samples) {
        return bad_chunk(12, "it holds " + std::to_string(head.samples) + " samples, but its index says " +
                                 std::to_string(expected_samples));
    }
    const std::uint64_t tables_bytes =
        (std::uint64_t{head.samples} + 1) * sizeof(std::uint32_t) + std::uint64_t{head.frames} * sizeof(Frame);
    if (tables_bytes > file_bytes - sizeof(ChunkHead)) {
        return bad_chunk(0, "the tables of its " + std::to_string(head.samples) + " samples in " +
                                std::to_string(head.frames) + " frames are longer than the file, which has " +
                                std::to_string(file_bytes) + " bytes");
    }
    return head;
}

// Adds the frame as a block. `offsets`: where its samples begin, and where the last one ends.
Result<void> add_frame(const Frame& frame, std::span<const std::uint32_t> offsets, IndexedObject& object) {
    if (!std::ranges::is_sorted(offsets) || offsets.back() - offsets.front() != frame.raw_bytes) {
        return bad_chunk(frame.offset, "the samples of the frame that begins here do not fill its " +
                                           std::to_string(frame.raw_bytes) + " bytes");
    }
    if (frame.bytes > protocol::kBlockBytesMax || frame.raw_bytes > protocol::kBlockBytesMax) {
        return fail(ErrorCode::unsupported, "at offset " + std::to_string(frame.offset) +
                                                ": the frame that begins here is too large; a block has at most 1 GiB");
    }
    DatasetContent::Block block{.offset = frame.offset,
                                .length = frame.bytes,
                                .first_sample = static_cast<std::uint32_t>(object.samples.size()),
                                .sample_count = 0,
                                .raw_bytes = frame.raw_bytes};
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
        const std::uint32_t bytes = offsets[i + 1] - offsets[i];
        if (bytes == 0) {
            ++object.empty_samples;
            continue;
        }
        object.samples.push_back({offsets[i] - offsets.front(), bytes});
        ++block.sample_count;
    }
    if (block.sample_count > 0) object.blocks.push_back(block);
    return {};
}

}  // namespace

Result<void> index_framed_chunk(ObjectReader& reader, std::uint64_t expected_samples, IndexedObject& object,
                                const ObjectProgress& progress) {
    const auto head = read_head(reader, expected_samples);
    if (!head) return std::unexpected(head.error());
    const std::size_t offsets_count = std::size_t{head->samples} + 1;
    const std::uint64_t frames_offset = sizeof(ChunkHead) + offsets_count * sizeof(std::uint32_t);
    const auto offsets = read_array<std::uint32_t>(reader, sizeof(ChunkHead), offsets_count, progress);
    if (!offsets) return std::unexpected(offsets.error());
    const auto frames = read_array<Frame>(reader, frames_offset, head->frames, progress);
    if (!frames) return std::unexpected(frames.error());

    std::uint64_t first_sample = 0;
    std::uint64_t at = frames_offset + frames->size() * sizeof(Frame);
    for (const Frame& frame : *frames) {
        const bool follows = frame.first_sample == first_sample && frame.samples > 0 &&
                             frame.samples <= head->samples - first_sample && frame.offset == at && frame.bytes > 0 &&
                             frame.bytes <= object.size_bytes - at;
        if (!follows) return bad_chunk(at, "no complete frame begins here");
        const auto frame_offsets = std::span(*offsets).subspan(first_sample, std::size_t{frame.samples} + 1);
        if (auto added = add_frame(frame, frame_offsets, object); !added) return added;
        first_sample += frame.samples;
        at += frame.bytes;
    }
    if (first_sample != head->samples || at != object.size_bytes) {
        return bad_chunk(at, "the last frame ends here, with " + std::to_string(first_sample) + " of " +
                                 std::to_string(head->samples) + " samples; the file has " +
                                 std::to_string(object.size_bytes) + " bytes");
    }
    return {};
}

}  // namespace larder::cache
