#include "tools/doctor/disk.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <random>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/units.h"
#include "cache/device.h"
#include "tools/doctor/file_system.h"
#include "tools/doctor/timed_transfers.h"

namespace larder::doctor {
namespace {

using cache::Device;
using cache::Operation;

constexpr std::size_t kDiskWriteBytes = std::size_t{1} << 20;
constexpr std::size_t kDiskWritesAtOnce = 8;
constexpr std::size_t kDiskReadBytes = std::size_t{128} << 10;
constexpr std::size_t kDiskReadsAtOnce = 32;
constexpr std::uint64_t kFileBytesMax = std::uint64_t{4} << 30;
constexpr std::uint64_t kFreePart = 4;  // the file takes at most a quarter of what is free
constexpr std::uint64_t kFreeBytesLeast = std::uint64_t{1} << 30;
constexpr std::int64_t kDiskHangs_ns = 10'000'000'000;

std::string nearest_that_exists(const std::string& directory) {
    std::error_code error;
    std::filesystem::path path = std::filesystem::absolute(directory, error);
    while (!std::filesystem::is_directory(path, error) && path.has_parent_path() && path != path.parent_path()) {
        path = path.parent_path();
    }
    return path.string();
}

struct Opened {
    FileDescriptor file;
    bool direct = false;
};

Result<Opened> open_unnamed(const std::string& directory) {
    for (const int direct : {O_DIRECT, 0}) {
        auto file = open_file(directory, O_TMPFILE | O_RDWR | direct, 0600);
        if (!file && file.error().system_errno == EOPNOTSUPP) {
            const std::string path = directory + "/.larder-doctor-" + std::to_string(::getpid());
            file = open_file(path, O_CREAT | O_EXCL | O_RDWR | direct, 0600);
            ::unlink(path.c_str());
        }
        if (file) return Opened{std::move(*file), direct != 0};
        if (file.error().system_errno != EINVAL || direct == 0) return std::unexpected(file.error());
    }
    return fail(ErrorCode::internal, "unreachable");
}

// Transfers between memory and a file: each Transfer is one slot of TimedTransfers.
class DiskTransfers {
public:
    DiskTransfers(Device& device, int fd, std::size_t piece_bytes, std::size_t at_once, double seconds)
        : device_(device),
          fd_(fd),
          piece_bytes_(piece_bytes),
          limits_{.seconds = seconds, .hangs_ns = kDiskHangs_ns},
          timed_(device, piece_bytes, at_once),
          transfers_(at_once) {
        for (Transfer& transfer : transfers_) {
            transfer.owner = this;
            transfer.done = [](Operation& operation, std::int32_t result) noexcept {
                auto& ended = static_cast<Transfer&>(operation);
                ended.owner->end(ended, result);
            };
        }
        // Disks that compress, or that detect zeros, would seem faster.
        std::mt19937_64 random(1);
        const std::span<std::byte> memory = timed_.memory();
        for (std::size_t at = 0; at + sizeof(std::uint64_t) <= memory.size(); at += sizeof(std::uint64_t)) {
            const std::uint64_t word = random();
            std::copy_n(reinterpret_cast<const std::byte*>(&word), sizeof word, memory.data() + at);
        }
    }

    // Writes until the time is over or the file has `bytes_max`.
    Result<void> write(std::uint64_t bytes_max) {
        std::uint64_t offset = 0;
        return timed_.run(limits_, [&](std::size_t slot) {
            if (offset + piece_bytes_ > bytes_max) return false;
            device_.write(fd_, timed_.piece(slot), offset, transfers_[slot]);
            offset += piece_bytes_;
            return true;
        });
    }

    Result<void> read(std::uint64_t file_bytes) {
        std::mt19937_64 random(2);
        return timed_.run(limits_, [&](std::size_t slot) {
            const std::uint64_t offset = random() % (file_bytes / piece_bytes_) * piece_bytes_;
            device_.read(fd_, timed_.piece(slot), offset, transfers_[slot]);
            return true;
        });
    }

    TimedTransfers& timed() { return timed_; }

private:
    struct Transfer : Operation {
        DiskTransfers* owner = nullptr;
    };

    void end(const Transfer& transfer, std::int32_t result) {
        if (result < 0) {
            timed_.failed(errno_error(-result, "transfer"));
        } else {
            timed_.ended(static_cast<std::size_t>(&transfer - transfers_.data()), static_cast<std::uint64_t>(result));
        }
    }

    Device& device_;
    const int fd_;
    const std::size_t piece_bytes_;
    const TransferLimits limits_;
    TimedTransfers timed_;
    std::vector<Transfer> transfers_;
};

DiskMeasure bad_disk(Finding finding, std::string found, std::string advice) {
    return {.finding = to_do(std::move(finding), std::move(found), std::move(advice))};
}

}  // namespace

DiskMeasure check_disk(const std::string& directory, double seconds) {
    Finding finding{.check = "disk", .subject = directory, .found = {}, .advice = {}};
    const std::string existing = nearest_that_exists(directory);
    struct statvfs space{};
    if (::statvfs(existing.c_str(), &space) != 0) {
        return bad_disk(std::move(finding), errno_error(errno, "statvfs " + existing).message,
                        "name a directory on a local disk with --state");
    }
    const std::uint64_t free_bytes = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
    finding.values["free_bytes"] = free_bytes;
    const FileSystem file_system = file_system_of(existing);
    if (!file_system.type.empty()) finding.values["file_system"] = file_system.type;
    FileSystemAdvice unfit = advice_on(file_system);
    if (unfit.is_no_disk) return bad_disk(std::move(finding), std::move(unfit.found), std::move(unfit.advice));
    auto opened = open_unnamed(existing);
    if (!opened) {
        return bad_disk(std::move(finding), opened.error().message,
                        opened.error().code == ErrorCode::permission_denied
                            ? "run larder doctor as the daemon's user, or name another directory with --state"
                            : "put the state directory on a local disk that can be written");
    }
    const SteadyClock clock;
    auto made = cache::make_device(cache::DeviceKind::automatic, clock);
    if (!made) return bad_disk(std::move(finding), made.error().message, "raise the limits of this process");
    const std::uint64_t room_bytes =
        std::min(kFileBytesMax, free_bytes / kFreePart) / kDiskWriteBytes * kDiskWriteBytes;
    finding.values["direct"] = opened->direct;
    if (room_bytes < kDiskWriteBytes * kDiskWritesAtOnce) {
        return bad_disk(std::move(finding), "has only " + format_bytes(free_bytes) + " free",
                        "make room, or put the state directory on another disk");
    }
    const int fd = opened->file.get();
    DiskTransfers writes(*made->device, fd, kDiskWriteBytes, kDiskWritesAtOnce, seconds);
    if (const auto written = writes.write(room_bytes); !written) {
        return bad_disk(std::move(finding), "writing failed: " + written.error().message,
                        "look into the kernel's log (dmesg), and put the state directory on another disk");
    }
    DiskTransfers reads(*made->device, fd, kDiskReadBytes, kDiskReadsAtOnce, seconds);
    if (const auto read = reads.read(writes.timed().bytes()); !read) {
        return bad_disk(std::move(finding), "reading failed: " + read.error().message,
                        "look into the kernel's log (dmesg), and put the state directory on another disk");
    }
    const double read_seconds = reads.timed().median_seconds();
    finding.values["write_bytes_per_second"] = writes.timed().bytes_per_second();
    finding.values["random_read_bytes_per_second"] = reads.timed().bytes_per_second();
    finding.values["random_read_median_s"] = read_seconds;
    finding.found = "writes " + format_bytes_per_second(writes.timed().bytes_per_second()) + " in sequence, reads " +
                    format_bytes_per_second(reads.timed().bytes_per_second()) + " at random (" +
                    format_bytes(kDiskReadBytes) + ", " + std::to_string(kDiskReadsAtOnce) + " at once, median " +
                    format_duration_ns(static_cast<std::int64_t>(read_seconds * 1e9)) + "), " +
                    format_bytes(free_bytes) + " free";
    if (existing != directory) finding.found += "; measured in " + existing;
    if (!unfit.found.empty()) finding.found += "; " + unfit.found;
    DiskMeasure measure{.finding = std::move(finding), .read_bytes_per_second = reads.timed().bytes_per_second()};
    if (!unfit.advice.empty()) {
        measure.finding.verdict = Verdict::to_do;
        measure.finding.advice = std::move(unfit.advice);
    } else if (!opened->direct) {
        measure.finding.verdict = Verdict::to_do;
        measure.finding.advice =
            "put the state directory on a file system with O_DIRECT (ext4, xfs): without it the "
            "page cache holds the data a second time";
    } else if (free_bytes < kFreeBytesLeast) {
        measure.finding.verdict = Verdict::to_do;
        measure.finding.advice = "make room: larder up gives datasets half of what is free";
    }
    return measure;
}

}  // namespace larder::doctor
