#pragma once

// The disk side of a DatasetStore: creates segment files through the Device (open, allocate, header page), writes
// records once their file is ready, and unlinks dropped files. When the disk is full or fails, admission pauses for a
// while. Every step is asynchronous, except the first probe, which makes the segment directory and asks the file system
// for its direct-I/O alignment.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "cache/device.h"
#include "cache/store/segment.h"

namespace larder::cache {

// True for the result of an operation that failed because of the place on the disk: a bad sector. Such a place is not
// used again.
bool is_bad_place(std::int32_t result);

class DiskSegments {
public:
    static constexpr std::int64_t kRetryAfterNs = 10'000'000'000;
    // Files whose header the disk cannot write keep their place, so that the next file gets another; this many at most.
    static constexpr unsigned kBadFilesMax = 2;

    DiskSegments(DatasetStore& store, Device& device, const Clock& clock, std::uint64_t dataset_id,
                 std::string directory, std::uint32_t alignment);

    // The alignment of new segments. Makes the directory and probes the file system at first use. Nothing if the
    // probe failed.
    std::optional<std::uint32_t> alignment();
    // False while admission is paused after a failure.
    bool admits() const;
    // Ends the pause, so that the next admission tries the disk again.
    void end_pause() { retry_at_ns_ = 0; }
    bool full() const { return full_; }
    const std::optional<Error>& problem() const { return problem_; }
    std::uint32_t operations_in_flight() const { return operations_in_flight_; }

    // Starts to create the file of a segment whose id, size and alignment are set.
    void create(Segment& segment);
    // Writes write.record as it is; ends in DatasetStore::finish_write.
    void write(StoreWrite& write);
    // Removes the file's name. The file itself is freed when its fd is closed.
    void unlink(Segment& segment);
    void close(Segment& segment);

private:
    static void on_opened(Operation& operation, std::int32_t result) noexcept;
    static void on_allocated(Operation& operation, std::int32_t result) noexcept;
    static void on_header_written(Operation& operation, std::int32_t result) noexcept;
    static void on_unlinked(Operation& operation, std::int32_t result) noexcept;
    static void on_record_written(Operation& operation, std::int32_t result) noexcept;

    void start_open(Segment& segment, int exclusive_or_truncate);
    void finish_creation(Segment& segment);
    void fail_creation(Segment& segment, std::int32_t result, const char* what);
    void start_write(StoreWrite& write);
    void continue_write(StoreWrite& write);
    void pause_admission(Error error);
    void note_success();

    DatasetStore& store_;
    Device& device_;
    const Clock& clock_;
    std::uint64_t dataset_id_;
    std::string directory_;
    std::uint32_t alignment_;
    bool directory_ready_ = false;
    bool direct_ = true;
    bool full_ = false;
    std::optional<Error> problem_;
    std::int64_t retry_at_ns_ = 0;
    unsigned bad_files_ = 0;
    std::uint32_t operations_in_flight_ = 0;
};

}  // namespace larder::cache
