#include "cache/store/segment_scan.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>

#include "cache/protocol/record.h"

namespace larder::cache {
namespace {

// Small records are read many at a time. Large records are skipped after their headers.
constexpr std::size_t kWindowBytesMax = std::size_t{256} << 10;
constexpr std::size_t kWindowBytesMin = 4096;
// The most bytes searched for headers after damage.
constexpr std::uint64_t kSearchBytesMax = std::uint64_t{256} << 20;
// Reads of a bad sector may take seconds each, so the scan skips the page of one, and ends after this many.
constexpr unsigned kFailedReadsMax = 16;
constexpr std::uint64_t kSkippedBytes = 4096;

class Window {
public:
    Window(int fd, std::uint64_t end) : fd_(fd), end_(end), bytes_(kWindowBytesMax) {}

    // The bytes of the record header at `offset`. Empty at the end or if they cannot be read.
    std::span<const std::byte> read_header(std::uint64_t offset, std::size_t read_bytes) {
        if (offset < begin_ || offset + protocol::kRecordHeaderBytes > begin_ + filled_) {
            begin_ = offset;
            filled_ = 0;
            const std::uint64_t wanted = std::min<std::uint64_t>({read_bytes, end_ - std::min(end_, offset)});
            while (filled_ < wanted) {
                const ssize_t read_count =
                    ::pread(fd_, bytes_.data() + filled_, wanted - filled_, static_cast<off_t>(offset + filled_));
                if (read_count < 0 && errno == EINTR) continue;
                if (read_count < 0 && filled_ == 0) ++failures_;
                if (read_count <= 0) break;
                filled_ += static_cast<std::size_t>(read_count);
            }
        }
        if (offset + protocol::kRecordHeaderBytes > begin_ + filled_) return {};
        return std::span(bytes_).subspan(offset - begin_, protocol::kRecordHeaderBytes);
    }

    // The number of reads that failed at their first byte.
    unsigned failures() const { return failures_; }

private:
    int fd_;
    std::uint64_t end_;
    std::uint64_t begin_ = 0;
    std::size_t filled_ = 0;
    unsigned failures_ = 0;
    std::vector<std::byte> bytes_;
};

}  // namespace

void scan_records(int fd, const SegmentHeader& header, std::uint64_t offset, std::uint64_t file_bytes,
                  std::vector<StoredBlock>& blocks) {
    const std::uint64_t end = std::min(header.size_bytes, file_bytes);
    const std::uint64_t alignment = header.alignment;
    Window window(fd, end);
    std::size_t read_bytes = kWindowBytesMin;
    std::uint64_t search_bytes_left = kSearchBytesMax;
    bool searching = false;
    while (offset + protocol::kRecordHeaderBytes <= end) {
        const unsigned failures = window.failures();
        const auto record = protocol::read_record_header(window.read_header(offset, read_bytes));
        if (window.failures() > failures) {
            if (window.failures() == kFailedReadsMax) return;
            const std::uint64_t step = std::max(alignment, kSkippedBytes);
            offset = (offset / step + 1) * step;
            continue;
        }
        const std::uint64_t bytes = record ? protocol::record_bytes(record->payload_bytes, alignment) : 0;
        if (record && record->dataset_id == header.dataset_id && record->segment == header.segment &&
            bytes <= end - offset) {
            blocks.push_back({.offset_units = static_cast<std::uint32_t>(offset / kOffsetUnitBytes),
                              .block_id = record->block_id,
                              .payload_bytes = record->payload_bytes,
                              .payload_crc = record->payload_crc,
                              .raw_bytes = record->raw_bytes});
            offset += bytes;
            read_bytes = bytes >= kWindowBytesMax / 4 ? kWindowBytesMin : kWindowBytesMax;
            searching = false;
            continue;
        }
        if (!searching) {
            // The file system reports a range never written as a hole: the usual end of a scan, found quickly.
            const off_t data = ::lseek(fd, static_cast<off_t>(offset), SEEK_DATA);
            if (data < 0 && errno == ENXIO) return;
            searching = true;
            read_bytes = kWindowBytesMax;
            const auto next = static_cast<std::uint64_t>(std::max<off_t>(data, 0)) / alignment * alignment;
            if (next > offset) {
                offset = next;
                continue;
            }
        }
        if (search_bytes_left < alignment) return;
        search_bytes_left -= alignment;
        offset += alignment;
    }
}

}  // namespace larder::cache
