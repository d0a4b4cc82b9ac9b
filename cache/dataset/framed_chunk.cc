#include "cache/dataset/framed_chunk.h"

#include <array>
#include <string>

#include "cache/protocol/claims.h"
#include "cache/protocol/little_endian.h"
#include "cache/protocol/manifest.h"

namespace larder::cache {
namespace {

constexpr std::array<char, 8> kChunkMagic{'L', 'D', 'F', 'Z', '0', '1', '\0', '\0'};
constexpr std::uint16_t kChunkVersion = 1;

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
    const std::uint64_t offsets_count = std::uint64_t{head.samples} + 1;
    if (!protocol::lies_within(sizeof(ChunkHead), offsets_count, sizeof(std::uint32_t), file_bytes) ||
        !protocol::lies_within(sizeof(ChunkHead) + offsets_count * sizeof(std::uint32_t), head.frames, sizeof(Frame),
                               file_bytes)) {
        return bad_chunk(0, "the tables of its " + std::to_string(head.samples) + " samples in " +
                                std::to_string(head.frames) + " frames are longer than the file, which has " +
                                std::to_string(file_bytes) + " bytes");
    }
    return head;
}

// Adds the frame as a block. `begin`: where its first sample begins; then the end of its last. `ends`: the ends of its
// samples and of those after it.
Result<void> add_frame(const Frame& frame, std::uint32_t& begin, protocol::ClaimedArray<std::uint32_t>& ends,
                       IndexedObject& object, const ObjectProgress& progress) {
    if (frame.bytes > protocol::kBlockBytesMax || frame.raw_bytes > protocol::kBlockBytesMax) {
        return fail(ErrorCode::unsupported, "at offset " + std::to_string(frame.offset) +
                                                ": the frame that begins here is too large; a block has at most 1 GiB");
    }
    if (!protocol::may_decompress_to(frame.bytes, frame.raw_bytes)) {
        return bad_chunk(frame.offset, "the frame that begins here has " + std::to_string(frame.bytes) +
                                           " bytes, which cannot hold the " + std::to_string(frame.raw_bytes) +
                                           " decompressed bytes that it claims");
    }
    DatasetContent::Block block{.offset = frame.offset,
                                .length = frame.bytes,
                                .first_sample = static_cast<std::uint32_t>(object.samples.size()),
                                .sample_count = 0,
                                .raw_bytes = frame.raw_bytes};
    const std::uint32_t frame_begin = begin;
    bool fill_frame = true;
    for (std::uint32_t i = 0; i < frame.samples && fill_frame; ++i) {
        if (i % kSamplesPerProgress == 0) {
            if (auto on = progress(0, index_bytes(object)); !on) return on;
        }
        const auto end = ends.next();
        if (!end) return std::unexpected(end.error());
        fill_frame = *end >= begin && *end - frame_begin <= frame.raw_bytes;
        const std::uint32_t bytes = *end - begin;
        if (fill_frame && bytes > 0) {
            object.samples.push_back({begin - frame_begin, bytes});
            ++block.sample_count;
        }
        object.empty_samples += bytes == 0;
        begin = *end;
    }
    if (!fill_frame || begin - frame_begin != frame.raw_bytes) {
        return bad_chunk(frame.offset, "the samples of the frame that begins here do not fill its " +
                                           std::to_string(frame.raw_bytes) + " bytes");
    }
    if (block.sample_count > 0) object.blocks.push_back(block);
    return {};
}

}  // namespace

Result<void> index_framed_chunk(ObjectReader& reader, std::uint64_t expected_samples, IndexedObject& object,
                                const ObjectProgress& progress) {
    const auto head = read_head(reader, expected_samples);
    if (!head) return std::unexpected(head.error());
    const std::uint64_t offsets_count = std::uint64_t{head->samples} + 1;
    const std::uint64_t frames_offset = sizeof(ChunkHead) + offsets_count * sizeof(std::uint32_t);
    protocol::ClaimedArray<std::uint32_t> ends(reader, sizeof(ChunkHead), offsets_count);
    protocol::ClaimedArray<Frame> frames(reader, frames_offset, head->frames);
    const auto first_offset = ends.next();
    if (!first_offset) return std::unexpected(first_offset.error());

    std::uint32_t begin = *first_offset;
    std::uint64_t first_sample = 0;
    std::uint64_t at = frames_offset + std::uint64_t{head->frames} * sizeof(Frame);
    while (!frames.at_end()) {
        const auto frame = frames.next();
        if (!frame) return std::unexpected(frame.error());
        const bool follows = frame->first_sample == first_sample && frame->samples > 0 &&
                             frame->samples <= head->samples - first_sample && frame->offset == at &&
                             frame->bytes > 0 && protocol::lies_within(at, frame->bytes, object.size_bytes);
        if (!follows) return bad_chunk(at, "no complete frame begins here");
        if (auto added = add_frame(*frame, begin, ends, object, progress); !added) return added;
        first_sample += frame->samples;
        at += frame->bytes;
    }
    if (first_sample != head->samples || at != object.size_bytes) {
        return bad_chunk(at, "the last frame ends here, with " + std::to_string(first_sample) + " of " +
                                 std::to_string(head->samples) + " samples; the file has " +
                                 std::to_string(object.size_bytes) + " bytes");
    }
    return {};
}

}  // namespace larder::cache
