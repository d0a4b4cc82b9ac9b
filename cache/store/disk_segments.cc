#include "cache/store/disk_segments.h"

#include <fcntl.h>

#include <cerrno>
#include <span>
#include <utility>

#include "base/assert.h"
#include "cache/store/disk_probe.h"
#include "cache/store/segment_header.h"
#include "cache/store/store.h"

namespace larder::cache {
namespace {

bool is_retryable(std::int32_t result) {
    return result == -EINTR || result == -EAGAIN;
}

}  // namespace

// The block layer reports an unreadable medium as ENODATA, a failed checksum of the drive as EILSEQ, and a failure of
// the target as EREMOTEIO.
bool is_bad_place(std::int32_t result) {
    return result == -EIO || result == -ENODATA || result == -EILSEQ || result == -EREMOTEIO;
}

DiskSegments::DiskSegments(DatasetStore& store, Device& device, const Clock& clock, std::uint64_t dataset_id,
                           std::string directory, std::uint32_t alignment)
    : store_(store),
      device_(device),
      clock_(clock),
      dataset_id_(dataset_id),
      directory_(std::move(directory)),
      alignment_(alignment),
      directory_ready_(alignment != 0) {}

std::optional<std::uint32_t> DiskSegments::alignment() {
    if (directory_ready_) return alignment_;
    if (!admits()) return std::nullopt;
    const auto probe = probe_disk(directory_);
    if (!probe) {
        pause_admission(probe.error());
        return std::nullopt;
    }
    alignment_ = probe->alignment;
    direct_ = probe->direct;
    directory_ready_ = true;
    return alignment_;
}

bool DiskSegments::admits() const {
    return !problem_ || clock_.now_ns() >= retry_at_ns_;
}

void DiskSegments::pause_admission(Error error) {
    full_ = error.code == ErrorCode::no_space;
    problem_ = std::move(error);
    retry_at_ns_ = clock_.now_ns() + kRetryAfterNs;
}

// Operations that began before the failure may still succeed. Only a success after the pause shows that the disk works.
void DiskSegments::note_success() {
    if (!problem_ || clock_.now_ns() < retry_at_ns_) return;
    problem_.reset();
    full_ = false;
}

void DiskSegments::create(Segment& segment) {
    segment.state_ = Segment::State::creating;
    segment.path_ = segment_path(directory_, segment.id_);
    segment.header_page_ = std::make_unique<Segment::HeaderPage>();
    write_segment_header(segment.header_page_->bytes, dataset_id_, segment.id_, segment.size_bytes_,
                         segment.alignment_);
    segment.step_.segment = &segment;
    segment.step_.disk = this;
    segment.references_++;
    operations_in_flight_++;
    start_open(segment, O_EXCL);
}

void DiskSegments::start_open(Segment& segment, int exclusive_or_truncate) {
    segment.step_.done = on_opened;
    const int flags = O_RDWR | O_CREAT | exclusive_or_truncate | (direct_ ? O_DIRECT : 0);
    device_.open(segment.path_.c_str(), flags, 0600, segment.step_);
}

void DiskSegments::on_opened(Operation& operation, std::int32_t result) noexcept {
    Segment& segment = *static_cast<Segment::Step&>(operation).segment;
    DiskSegments& self = *static_cast<Segment::Step&>(operation).disk;
    if (result == -EINVAL && self.direct_) {
        // The file system has no direct I/O. The refused open has left the file behind.
        self.direct_ = false;
        return self.start_open(segment, O_TRUNC);
    }
    if (result < 0) return self.fail_creation(segment, result, "create segment ");
    segment.fd_ = FileDescriptor(result);
    if (segment.dropped_) return self.fail_creation(segment, -ECANCELED, "");
    segment.step_.done = on_allocated;
    self.device_.allocate(segment.fd(), segment.size_bytes_, segment.step_);
}

void DiskSegments::on_allocated(Operation& operation, std::int32_t result) noexcept {
    Segment& segment = *static_cast<Segment::Step&>(operation).segment;
    DiskSegments& self = *static_cast<Segment::Step&>(operation).disk;
    if (segment.dropped_) return self.fail_creation(segment, -ECANCELED, "");
    // If the file system cannot reserve room, a later write fails if there is none.
    const bool may_continue = result >= 0 || result == -EOPNOTSUPP || result == -ENOSYS;
    if (is_retryable(result)) return self.device_.allocate(segment.fd(), segment.size_bytes_, operation);
    if (!may_continue) return self.fail_creation(segment, result, "reserve room for segment ");
    segment.step_.done = on_header_written;
    self.device_.write(segment.fd(), segment.header_page_->bytes, 0, segment.step_);
}

void DiskSegments::on_header_written(Operation& operation, std::int32_t result) noexcept {
    Segment& segment = *static_cast<Segment::Step&>(operation).segment;
    DiskSegments& self = *static_cast<Segment::Step&>(operation).disk;
    if (segment.dropped_) return self.fail_creation(segment, -ECANCELED, "");
    if (is_retryable(result)) return self.device_.write(segment.fd(), segment.header_page_->bytes, 0, operation);
    if (result >= 0 && result < static_cast<std::int32_t>(kSegmentHeaderBytes)) result = -EIO;
    if (result < 0) return self.fail_creation(segment, result, "write the header of segment ");
    self.finish_creation(segment);
}

void DiskSegments::finish_creation(Segment& segment) {
    note_success();
    segment.state_ = Segment::State::ready;
    segment.header_page_.reset();
    store_.put_segment_into_index(segment);
    StoreWrite* write = std::exchange(segment.waiting_writes_, nullptr);
    while (write != nullptr) {
        StoreWrite* next = std::exchange(write->next, nullptr);
        start_write(*write);
        write = next;
    }
    operations_in_flight_--;
    store_.release(segment);
}

void DiskSegments::fail_creation(Segment& segment, std::int32_t result, const char* what) {
    const bool dropped = segment.dropped_;
    if (!dropped) pause_admission(errno_error(-result, what + segment.path_));
    segment.state_ = Segment::State::failed;
    segment.header_page_.reset();
    if (!dropped) store_.drop_failed_segment(segment);
    StoreWrite* write = std::exchange(segment.waiting_writes_, nullptr);
    while (write != nullptr) {
        StoreWrite* next = std::exchange(write->next, nullptr);
        store_.finish_write(*write, result);
        write = next;
    }
    // Only the header page is written before this.
    const bool keeps_place = segment.fd_ && is_bad_place(result) && bad_files_ < kBadFilesMax;
    if (keeps_place) {
        ++bad_files_;
    } else if (segment.fd_) {
        unlink(segment);
    }
    operations_in_flight_--;
    store_.release(segment);
}

void DiskSegments::write(StoreWrite& write) {
    Segment& segment = *write.reservation.segment;
    if (segment.state_ == Segment::State::ready) return start_write(write);
    LARDER_ASSERT(segment.state_ == Segment::State::creating);
    (segment.waiting_writes_ == nullptr ? segment.waiting_writes_ : segment.waiting_writes_last_->next) = &write;
    segment.waiting_writes_last_ = &write;
}

void DiskSegments::start_write(StoreWrite& write) {
    operations_in_flight_++;
    write.done = on_record_written;
    continue_write(write);
}

void DiskSegments::continue_write(StoreWrite& write) {
    device_.write(write.reservation.segment->fd(), write.record.subspan(write.written_bytes),
                  write.reservation.offset + write.written_bytes, write);
}

void DiskSegments::on_record_written(Operation& operation, std::int32_t result) noexcept {
    StoreWrite& write = static_cast<StoreWrite&>(operation);
    DatasetStore& store = *write.store;
    DiskSegments& self = store.disk_;
    if (is_retryable(result)) return self.continue_write(write);
    if (result >= 0) {
        // A short direct write resumes at an aligned offset.
        const std::uint64_t progress =
            static_cast<std::uint32_t>(result) & ~(write.reservation.segment->alignment_ - 1);
        write.written_bytes += progress;
        if (progress > 0 && write.written_bytes < write.record.size()) return self.continue_write(write);
        result = write.written_bytes >= write.record.size() ? 0 : -EIO;
    }
    if (result == 0) {
        self.note_success();
    } else {
        self.pause_admission(errno_error(-result, "write to segment " + write.reservation.segment->path_));
    }
    self.operations_in_flight_--;
    store.finish_write(write, result);
}

void DiskSegments::unlink(Segment& segment) {
    segment.step_.segment = &segment;
    segment.step_.disk = this;
    segment.step_.done = on_unlinked;
    segment.references_++;
    operations_in_flight_++;
    device_.unlink(segment.path_.c_str(), segment.step_);
}

// The index knows the segment until its file is gone: without its rows, the next start would scan the file and bring
// back blocks that were dropped. If the unlink failed, the next start applies the quota to the segment.
void DiskSegments::on_unlinked(Operation& operation, std::int32_t result) noexcept {
    Segment& segment = *static_cast<Segment::Step&>(operation).segment;
    DiskSegments& self = *static_cast<Segment::Step&>(operation).disk;
    const bool is_gone = result >= 0 || result == -ENOENT;
    if (is_gone && segment.state_ == Segment::State::ready) self.store_.remove_segment_from_index(segment);
    self.operations_in_flight_--;
    self.store_.release(segment);
}

void DiskSegments::close(Segment& segment) {
    if (segment.fd_) device_.close(segment.fd_.release());
}

}  // namespace larder::cache
