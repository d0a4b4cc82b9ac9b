#include "tools/doctor/disk.h"

#include <fcntl.h>
#include <sys/statfs.h>
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
#include "cache/shard/page_memory.h"

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

// The magic numbers of statfs(2) for file systems that other machines serve; linux/magic.h has only some.
constexpr std::pair<std::uint32_t, const char*> kNetworkFileSystems[] = {
    {0x6969, "NFS"},        {0xff534d42, "CIFS"}, {0xfe534d42, "SMB"}, {0x517b, "SMB"},
    {0x0bd00bd0, "Lustre"}, {0x00c36400, "Ceph"}, {0x01021997, "9P"},  {0x65735546, "FUSE"},
    {0x19830326, "BeeGFS"}, {0x47504653, "GPFS"}, {0x5346414f, "AFS"}, {0x20030528, "OrangeFS"}};

std::string network_file_system(const std::string& directory) {
    struct statfs status{};
    if (::statfs(directory.c_str(), &status) != 0) return {};
    for (const auto& [magic, name] : kNetworkFileSystems) {
        if (static_cast<std::uint32_t>(status.f_type) == magic) return name;
    }
    return {};
}

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

// Runs one kind of transfer on a file, several at once, and counts their bytes.
class DiskTransfers {
public:
    DiskTransfers(Device& device, int fd, std::size_t piece_bytes, std::size_t at_once, double seconds)
        : device_(device), fd_(fd), piece_bytes_(piece_bytes), memory_(cache::allocate_pages(piece_bytes * at_once)) {
        transfers_.resize(at_once);
        // Disks that compress, or that detect zeros, would seem faster.
        std::mt19937_64 random(1);
        for (std::size_t at = 0; at + sizeof(std::uint64_t) <= piece_bytes * at_once; at += sizeof(std::uint64_t)) {
            const std::uint64_t word = random();
            std::copy_n(reinterpret_cast<const std::byte*>(&word), sizeof word, memory_.get() + at);
        }
        began_ns_ = clock_.now_ns();
        deadline_ns_ = began_ns_ + static_cast<std::int64_t>(seconds * 1e9);
    }

    // Writes until the time is over or the file has `bytes_max`.
    Result<void> write(std::uint64_t bytes_max) {
        return run([&](Transfer& transfer) {
            if (started_bytes_ + piece_bytes_ > bytes_max) return false;
            device_.write(fd_, piece(transfer), started_bytes_, transfer);
            return true;
        });
    }

    Result<void> read(std::uint64_t file_bytes) {
        std::mt19937_64 random(2);
        return run([&](Transfer& transfer) {
            device_.read(fd_, piece(transfer), random() % (file_bytes / piece_bytes_) * piece_bytes_, transfer);
            return true;
        });
    }

    std::uint64_t bytes() const { return started_bytes_; }
    double bytes_per_second() const { return seconds_ > 0 ? static_cast<double>(started_bytes_) / seconds_ : 0; }
    double median_seconds() {
        if (latencies_ns_.empty()) return 0;
        const auto middle = latencies_ns_.begin() + static_cast<std::ptrdiff_t>(latencies_ns_.size() / 2);
        std::ranges::nth_element(latencies_ns_, middle);
        return static_cast<double>(*middle) / 1e9;
    }

private:
    struct Transfer : Operation {
        DiskTransfers* owner = nullptr;
        std::int64_t began_ns = 0;
    };

    std::span<std::byte> piece(const Transfer& transfer) const {
        const auto index = static_cast<std::size_t>(&transfer - transfers_.data());
        return {memory_.get() + index * piece_bytes_, piece_bytes_};
    }

    template <typename Start>
    Result<void> run(const Start& start_one) {
        const auto start = [&](Transfer& transfer) {
            if (result_ < 0 || clock_.now_ns() >= deadline_ns_) return;
            transfer.began_ns = clock_.now_ns();
            if (!start_one(transfer)) return;
            started_bytes_ += piece_bytes_;
            ++running_;
        };
        for (Transfer& transfer : transfers_) {
            transfer.owner = this;
            transfer.done = [](Operation& operation, std::int32_t result) noexcept {
                auto& ended = static_cast<Transfer&>(operation);
                ended.owner->end(ended, result);
            };
            start(transfer);
        }
        while (running_ > 0) {
            if (clock_.now_ns() >= deadline_ns_ + kDiskHangs_ns) {
                // The disk may still write to the memory.
                if (!device_.stop()) static_cast<void>(memory_.release());
                return fail(ErrorCode::timeout, "the disk has not answered for 10 s");
            }
            device_.wait(deadline_ns_ + kDiskHangs_ns);
            std::vector<Transfer*> ended;
            ended.swap(ended_);
            for (Transfer* transfer : ended) start(*transfer);
        }
        seconds_ = seconds_since(clock_, began_ns_);
        if (result_ < 0) return fail_errno(-result_, "transfer");
        return {};
    }

    void end(Transfer& transfer, std::int32_t result) {
        --running_;
        latencies_ns_.push_back(clock_.now_ns() - transfer.began_ns);
        if (result < 0) result_ = result;
        ended_.push_back(&transfer);
    }

    static constexpr std::int64_t kDiskHangs_ns = 10'000'000'000;

    Device& device_;
    const int fd_;
    const std::size_t piece_bytes_;
    const SteadyClock clock_;
    cache::PageMemory memory_;
    std::vector<Transfer> transfers_;
    std::vector<Transfer*> ended_;
    std::vector<std::int64_t> latencies_ns_;
    std::int64_t began_ns_ = 0;
    std::int64_t deadline_ns_ = 0;
    std::uint64_t started_bytes_ = 0;
    std::size_t running_ = 0;
    std::int32_t result_ = 0;
    double seconds_ = 0;
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
    if (const std::string kind = network_file_system(existing); !kind.empty()) {
        finding.values["network_file_system"] = kind;
        return bad_disk(
            std::move(finding), "is on " + kind + ", which is no local disk",
            "put the state directory on a disk of this node (larder up --state, state_directory of larderd): "
            "its index needs a local file system");
    }
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
    if (const auto read = reads.read(writes.bytes()); !read) {
        return bad_disk(std::move(finding), "reading failed: " + read.error().message,
                        "look into the kernel's log (dmesg), and put the state directory on another disk");
    }
    const double read_seconds = reads.median_seconds();
    finding.values["write_bytes_per_second"] = writes.bytes_per_second();
    finding.values["random_read_bytes_per_second"] = reads.bytes_per_second();
    finding.values["random_read_median_s"] = read_seconds;
    finding.found = "writes " + format_bytes_per_second(writes.bytes_per_second()) + " in sequence, reads " +
                    format_bytes_per_second(reads.bytes_per_second()) + " at random (" + format_bytes(kDiskReadBytes) +
                    ", " + std::to_string(kDiskReadsAtOnce) + " at once, median " +
                    format_duration_ns(static_cast<std::int64_t>(read_seconds * 1e9)) + "), " +
                    format_bytes(free_bytes) + " free";
    if (existing != directory) finding.found += "; measured in " + existing;
    DiskMeasure measure{.finding = std::move(finding), .read_bytes_per_second = reads.bytes_per_second()};
    if (!opened->direct) {
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
