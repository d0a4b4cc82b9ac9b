// Any bytes as a disk segment, unchanged and with the checksums of their record headers repaired. Each record found
// lies in the segment, aligned, in order and without overlap, and every repaired record is found.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/file.h"
#include "base/hash.h"
#include "cache/protocol/record.h"
#include "cache/store/segment_header.h"
#include "cache/store/segment_scan.h"

namespace larder::cache {
namespace {

constexpr std::uint64_t kDataset = 7;
constexpr std::uint32_t kSegment = 3;

void scan(int fd, const SegmentHeader& header, std::uint64_t offset, std::uint64_t file_bytes) {
    std::vector<StoredBlock> blocks;
    scan_records(fd, header, offset, file_bytes, blocks);
    std::uint64_t end = offset;
    for (const StoredBlock& block : blocks) {
        LARDER_ASSERT(block.offset() >= end && block.offset() % header.alignment == 0);
        end = block.offset() + protocol::record_bytes(block.payload_bytes, header.alignment);
        LARDER_ASSERT(end <= std::min(header.size_bytes, file_bytes));
        LARDER_ASSERT(block.raw_bytes == 0 || block.payload_bytes < block.raw_bytes);
    }
}

// Replaces each record header that has the magic, at an offset where a record can begin, by a valid header of this
// segment.
void repair(std::string& bytes, std::uint32_t alignment) {
    for (std::size_t at = kSegmentHeaderBytes; at + protocol::kRecordHeaderBytes <= bytes.size(); at += alignment) {
        protocol::RecordHeader record;
        std::memcpy(&record, bytes.data() + at, sizeof record);
        if (record.magic != protocol::kRecordMagic) continue;
        const auto good =
            protocol::make_record_header(kDataset, record.block_id, record.payload_bytes % 4096, record.payload_crc,
                                         kSegment, {.raw_bytes = record.raw_bytes, .raw_crc = record.raw_crc});
        std::memcpy(bytes.data() + at, &good, sizeof good);
    }
}

// Reads the input as a segment's header: unchanged, and with magic and checksum repaired.
void read_header(std::span<const std::byte> input) {
    for (const bool repaired : {false, true}) {
        SegmentHeader header{};
        std::memcpy(&header, input.data(), std::min(input.size(), sizeof header));
        if (repaired) {
            std::memcpy(header.magic, "LARDERSG", sizeof header.magic);
            header.crc = 0;
            header.crc = crc32c(std::as_bytes(std::span(&header, 1)));
        }
        const auto read = read_segment_header(std::as_bytes(std::span(&header, 1)));
        LARDER_ASSERT(!read || (read->layout == kSegmentLayout && read->alignment >= 64 &&
                                (read->alignment & (read->alignment - 1)) == 0));
    }
}

}  // namespace
}  // namespace larder::cache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace larder::cache;
    static const larder::FileDescriptor file(::memfd_create("segment", MFD_CLOEXEC));
    if (size < 2) return 0;
    const std::uint32_t alignment = 64u << (data[0] % 7);
    std::string bytes(kSegmentHeaderBytes, '\0');
    bytes.append(reinterpret_cast<const char*>(data) + 2, size - 2);
    read_header(std::as_bytes(std::span(data, size)));
    SegmentHeader header{};
    header.dataset_id = kDataset;
    header.segment = kSegment;
    header.alignment = alignment;
    for (const bool repaired : {false, true}) {
        if (repaired) repair(bytes, alignment);
        LARDER_ASSERT(::ftruncate(file.get(), 0) == 0);
        LARDER_ASSERT(::pwrite(file.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
        for (const std::uint64_t size_bytes : {bytes.size(), bytes.size() / 2, bytes.size() * 2}) {
            header.size_bytes = size_bytes;
            scan(file.get(), header, kSegmentHeaderBytes, bytes.size());
            scan(file.get(), header, kSegmentHeaderBytes + 4096, bytes.size());
        }
    }
    return 0;
}
