// Scans of segments on disks with bad sectors.

#include "cache/store/segment_scan.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "base/file.h"
#include "cache/protocol/record.h"

namespace larder::cache {
namespace {

constexpr std::uint64_t kPage = 4096;

// A segment with a record in each page, read through /proc/self/mem: reads of a page that is not mapped fail with EIO.
class SegmentWithBadSectors {
public:
    explicit SegmentWithBadSectors(std::uint32_t pages)
        // A low address, because records' offsets have 32 bits, in units of 64 bytes.
        : bytes_(pages * kPage),
          memory_(static_cast<std::byte*>(::mmap(reinterpret_cast<void*>(0x20000000), bytes_, PROT_READ | PROT_WRITE,
                                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
          file_(*open_file("/proc/self/mem", O_RDONLY)) {
        for (std::uint32_t page = 0; page < pages; ++page) {
            const auto record = protocol::make_record_header(7, page, 100, 0, 3);
            std::memcpy(memory_ + page * kPage, &record, sizeof record);
        }
    }
    ~SegmentWithBadSectors() { ::munmap(memory_, bytes_); }
    SegmentWithBadSectors(const SegmentWithBadSectors&) = delete;
    SegmentWithBadSectors& operator=(const SegmentWithBadSectors&) = delete;

    void damage(std::uint32_t page) { ASSERT_EQ(::munmap(memory_ + page * kPage, kPage), 0); }

    // Returns the ids of the blocks that a scan finds.
    std::vector<std::uint32_t> scan() const {
        const auto begin = reinterpret_cast<std::uint64_t>(memory_);
        EXPECT_LT(begin + bytes_, kOffsetUnitBytes << 32);
        SegmentHeader header{};
        header.dataset_id = 7;
        header.segment = 3;
        header.alignment = kPage;
        header.size_bytes = begin + bytes_;
        std::vector<StoredBlock> blocks;
        scan_records(file_.get(), header, begin, begin + bytes_, blocks);
        std::vector<std::uint32_t> ids;
        for (const StoredBlock& block : blocks) ids.push_back(block.block_id);
        return ids;
    }

private:
    std::size_t bytes_;
    std::byte* memory_;
    FileDescriptor file_;
};

TEST(SegmentScan, RecordsBehindBadSectorsAreFound) {
    SegmentWithBadSectors segment(100);
    std::vector<std::uint32_t> expected;
    for (std::uint32_t page = 0; page < 100; ++page) {
        if (page == 0 || page == 30 || page == 31) {
            segment.damage(page);
        } else {
            expected.push_back(page);
        }
    }
    EXPECT_EQ(segment.scan(), expected);
}

// A read of a bad sector may take seconds.
TEST(SegmentScan, EndsEarlyOnADiskFullOfBadSectors) {
    SegmentWithBadSectors segment(100);
    for (std::uint32_t page = 1; page < 100; page += 2) segment.damage(page);
    const auto found = segment.scan();
    EXPECT_GE(found.size(), 10u);
    EXPECT_LE(found.size(), 20u);
}

}  // namespace
}  // namespace larder::cache
