// Every Device keeps the contract of cache/device.h: the ring (with a queue of its usual size, with a tiny one, and as
// on kernels that cannot defer task work), the thread pool, and the fake that other tests build on.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "cache/device.h"
#include "cache/device/ring_device.h"
#include "cache/device/thread_device.h"
#include "tests/support/fake_device.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_units.h"

namespace larder::cache {

using test::kSecond_ns;
namespace {

constexpr std::int64_t kLongEnough_ns = 60 * kSecond_ns;

enum class Kind { ring, tiny_ring, plain_ring, threads, fake };

std::string kind_name(const testing::TestParamInfo<Kind>& info) {
    constexpr const char* kNames[] = {"ring", "tiny_ring", "plain_ring", "threads", "fake"};
    return kNames[static_cast<int>(info.param)];
}

struct Recorded : Operation {
    Recorded() {
        done = [](Operation& operation, std::int32_t given) noexcept {
            auto& self = static_cast<Recorded&>(operation);
            self.result = given;
            ++self.completions;
        };
    }
    std::int32_t result = 0;
    int completions = 0;
};

std::size_t open_descriptors() {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator{}));
}

// Page-aligned memory with a known content.
class Pages {
public:
    explicit Pages(std::size_t bytes, std::uint64_t seed = 0) : bytes_(bytes) {
        void* memory =
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        EXPECT_NE(memory, MAP_FAILED);
        data_ = static_cast<std::byte*>(memory);
        if (seed != 0)
            for (std::size_t i = 0; i < bytes; ++i) data_[i] = static_cast<std::byte>(mix64(seed + i));
    }
    ~Pages() { ::munmap(data_, bytes_); }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;

    std::span<std::byte> span() const { return {data_, bytes_}; }
    std::string text() const { return {reinterpret_cast<const char*>(data_), bytes_}; }

private:
    std::byte* data_;
    std::size_t bytes_;
};

class DeviceContract : public testing::TestWithParam<Kind> {
protected:
    DeviceContract() {
        switch (GetParam()) {
            case Kind::ring: take(make_ring_device(steady_clock_)); break;
            case Kind::tiny_ring: take(make_ring_device(steady_clock_, {.entries = 4})); break;
            case Kind::plain_ring: take(make_ring_device(steady_clock_, {.defer_task_work = false})); break;
            case Kind::threads: take(make_thread_device(steady_clock_, {.threads = 3})); break;
            case Kind::fake:
                clock_ = &manual_clock_;
                device_ = std::make_unique<test::FakeDevice>(disk_, manual_clock_,
                                                             test::FakeDeviceOptions{.jitter_ns = 1'000'000});
                break;
        }
    }

    void take(Result<std::unique_ptr<Device>> made) {
        if (!made) throw std::runtime_error(made.error().message);
        device_ = std::move(*made);
    }

    std::string path(const std::string& name) const { return directory_ / name; }

    // Runs the device until each operation has completed. Each must complete once.
    void finish(std::initializer_list<const Recorded*> operations) {
        const std::int64_t deadline_ns = clock_->now_ns() + kLongEnough_ns;
        for (const Recorded* operation : operations) {
            while (operation->completions == 0 && clock_->now_ns() < deadline_ns) device_->wait(deadline_ns);
            ASSERT_EQ(operation->completions, 1);
        }
    }

    int open(const std::string& file, int flags) {
        Recorded operation;
        device_->open(file.c_str(), flags, 0644, operation);
        finish({&operation});
        return operation.result;
    }
    std::int32_t write(int fd, std::span<const std::byte> from, std::uint64_t offset) {
        Recorded operation;
        device_->write(fd, from, offset, operation);
        finish({&operation});
        return operation.result;
    }
    std::int32_t read(int fd, std::span<std::byte> into, std::uint64_t offset) {
        Recorded operation;
        device_->read(fd, into, offset, operation);
        finish({&operation});
        return operation.result;
    }
    struct statx stat(int fd) {
        struct statx stat{};
        Recorded operation;
        device_->stat(fd, stat, operation);
        finish({&operation});
        EXPECT_EQ(operation.result, 0);
        return stat;
    }

    test::TempDirectory directory_;
    test::FakeDisk disk_;
    SteadyClock steady_clock_;
    ManualClock manual_clock_;
    Clock* clock_ = &steady_clock_;
    std::unique_ptr<Device> device_;
};

INSTANTIATE_TEST_SUITE_P(Device, DeviceContract,
                         testing::Values(Kind::ring, Kind::tiny_ring, Kind::plain_ring, Kind::threads, Kind::fake),
                         kind_name);

TEST_P(DeviceContract, WrittenBytesAreReadBack) {
    const int fd = open(path("file"), O_RDWR | O_CREAT);
    ASSERT_GE(fd, 0);
    const Pages out(256 * 1024, 7);
    EXPECT_EQ(write(fd, out.span(), 0), 256 * 1024);
    const Pages in(256 * 1024);
    EXPECT_EQ(read(fd, in.span(), 0), 256 * 1024);
    EXPECT_EQ(in.text(), out.text());
    EXPECT_EQ(read(fd, in.span().first(1000), 5000), 1000);
    EXPECT_EQ(in.text().substr(0, 1000), out.text().substr(5000, 1000));
    device_->close(fd);
}

TEST_P(DeviceContract, ReadStopsAtTheEndOfTheFile) {
    const int fd = open(path("file"), O_RDWR | O_CREAT);
    const Pages memory(4096, 3);
    EXPECT_EQ(write(fd, memory.span().first(1000), 0), 1000);
    EXPECT_EQ(read(fd, memory.span(), 600), 400);
    EXPECT_EQ(read(fd, memory.span(), 1000), 0);
    EXPECT_EQ(read(fd, memory.span(), 99'999), 0);
    device_->close(fd);
}

TEST_P(DeviceContract, FailuresAreNegativeErrnos) {
    EXPECT_EQ(open(path("missing"), O_RDONLY), -ENOENT);
    const int fd = open(path("file"), O_RDONLY | O_CREAT);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(open(path("file"), O_RDWR | O_CREAT | O_EXCL), -EEXIST);
    const Pages memory(4096);
    EXPECT_EQ(write(fd, memory.span(), 0), -EBADF);
    EXPECT_EQ(read(1'000'000, memory.span(), 0), -EBADF);
    Recorded unlink, allocate;
    const std::string missing = path("missing");
    device_->unlink(missing.c_str(), unlink);
    device_->allocate(1'000'000, 4096, allocate);
    finish({&unlink, &allocate});
    EXPECT_EQ(unlink.result, -ENOENT);
    EXPECT_EQ(allocate.result, -EBADF);
    device_->close(fd);
}

TEST_P(DeviceContract, DescriptorsDoNotCrossExec) {
    const int fd = open(path("file"), O_RDWR | O_CREAT);
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    device_->close(fd);
}

TEST_P(DeviceContract, FifoIsRefusedWithoutWaiting) {
    ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
    const std::size_t before = open_descriptors();
    EXPECT_EQ(open(path("fifo"), O_RDONLY), GetParam() == Kind::fake ? -ENOENT : -ESPIPE);
    EXPECT_EQ(open_descriptors(), before);
}

// The fake disk has no links.
class DeviceWithLinks : public DeviceContract {};
INSTANTIATE_TEST_SUITE_P(Device, DeviceWithLinks,
                         testing::Values(Kind::ring, Kind::tiny_ring, Kind::plain_ring, Kind::threads), kind_name);

TEST_P(DeviceWithLinks, OpenAtFollowsOnlyTheLinksOfItsRule) {
    std::filesystem::create_directories(path("root/sub"));
    std::ofstream(path("root/file")) << "inside";
    std::ofstream(path("outside")) << "outside";
    std::filesystem::create_symlink("../file", path("root/sub/in"));
    std::filesystem::create_symlink("../../outside", path("root/sub/out"));
    const auto open_at = [&](int directory, const std::string& file, LinkRule rule, int flags) {
        Recorded operation;
        device_->open_at(directory, file.c_str(), rule, flags, operation);
        finish({&operation});
        return operation.result;
    };
    const std::size_t before = open_descriptors();
    const int root = open_at(AT_FDCWD, path("root"), LinkRule::none, O_PATH | O_DIRECTORY);
    ASSERT_GE(root, 0);
    EXPECT_EQ(open_at(root, "sub/in", LinkRule::none, O_RDONLY), -ELOOP);
    EXPECT_EQ(open_at(root, "sub/out", LinkRule::beneath, O_RDONLY), -EXDEV);
    const int inside = open_at(root, "sub/in", LinkRule::beneath, O_RDONLY);
    ASSERT_GE(inside, 0);
    EXPECT_EQ(::fcntl(inside, F_GETFL) & O_NONBLOCK, 0);
    EXPECT_NE(::fcntl(inside, F_GETFD) & FD_CLOEXEC, 0);
    std::array<char, 6> content{};
    EXPECT_EQ(read(inside, std::as_writable_bytes(std::span(content)), 0), 6);
    EXPECT_EQ(std::string_view(content.data(), content.size()), "inside");
    device_->close(inside);
    device_->close(root);
    device_->stop();
    EXPECT_LE(open_descriptors(), before);
}

TEST_P(DeviceContract, DescriptorHasTheRequestedFlags) {
    const int fd = open(path("file"), O_RDWR | O_CREAT | O_APPEND);
    ASSERT_GE(fd, 0);
    if (GetParam() != Kind::fake) {
        EXPECT_EQ(::fcntl(fd, F_GETFL) & (O_APPEND | O_NONBLOCK), O_APPEND);
    }
    device_->close(fd);
}

TEST_P(DeviceContract, StatReportsSizeTypeTimeAndAlignment) {
    const int fd = open(path("file"), O_RDWR | O_CREAT);
    const Pages memory(4096, 1);
    EXPECT_EQ(write(fd, memory.span().first(1234), 0), 1234);
    const struct statx found = stat(fd);
    EXPECT_EQ(found.stx_size, 1234u);
    EXPECT_TRUE(S_ISREG(found.stx_mode));
    EXPECT_EQ(found.stx_mask & STATX_BASIC_STATS, unsigned{STATX_BASIC_STATS});
    EXPECT_EQ(found.stx_nlink, 1u);
    if ((found.stx_mask & STATX_DIOALIGN) != 0 && found.stx_dio_offset_align != 0) {
        EXPECT_EQ(4096 % found.stx_dio_offset_align, 0u);
    }
    device_->close(fd);
}

TEST_P(DeviceContract, DirectIoReadsAndWrites) {
    const FileDescriptor direct(::open(path("file").c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
    const int why_not = direct ? 0 : errno;
    const int fd = open(path("file"), O_RDWR | O_CREAT | O_DIRECT);
    if (why_not != 0) {
        EXPECT_EQ(fd, -why_not);  // a file system without O_DIRECT
        return;
    }
    ASSERT_GE(fd, 0);
    const Pages out(128 * 1024, 9), in(128 * 1024);
    EXPECT_EQ(write(fd, out.span(), 8192), 128 * 1024);
    EXPECT_EQ(read(fd, in.span().first(64 * 1024), 8192 + 4096), 64 * 1024);
    EXPECT_EQ(in.text().substr(0, 64 * 1024), out.text().substr(4096, 64 * 1024));
    device_->close(fd);
}

TEST_P(DeviceContract, AddedBuffersWorkLikeOtherMemory) {
    const Pages memory(std::size_t{4} << 20, 5);
    const std::string before = memory.text();
    const bool added = device_->add_buffer(memory.span());
    const int fd = open(path("file"), O_RDWR | O_CREAT);
    EXPECT_EQ(write(fd, memory.span().first(1 << 20), 0), 1 << 20);
    EXPECT_EQ(read(fd, memory.span().subspan(2 << 20, 1 << 20), 0), 1 << 20);
    EXPECT_EQ(memory.text().substr(2 << 20, 1 << 20), before.substr(0, 1 << 20));
    if (added) device_->remove_buffer(memory.span());
    EXPECT_EQ(read(fd, memory.span().subspan(3 << 20, 1 << 20), 0), 1 << 20);
    EXPECT_EQ(memory.text().substr(3 << 20), before.substr(0, 1 << 20));
    device_->close(fd);
}

TEST_P(DeviceContract, AllocateReservesAndUnlinkRemoves) {
    const std::string file = path("file");
    const int fd = open(file, O_RDWR | O_CREAT);
    Recorded allocate;
    device_->allocate(fd, 1 << 20, allocate);
    finish({&allocate});
    EXPECT_EQ(allocate.result, 0);
    EXPECT_EQ(stat(fd).stx_size, 1u << 20);
    EXPECT_GE(stat(fd).stx_blocks * 512, 1u << 20);
    Recorded unlink;
    device_->unlink(file.c_str(), unlink);
    finish({&unlink});
    EXPECT_EQ(unlink.result, 0);
    EXPECT_EQ(stat(fd).stx_nlink, 0u);
    EXPECT_EQ(open(file, O_RDONLY), -ENOENT);
    device_->close(fd);
}

TEST_P(DeviceContract, WatchFiresOnceAndCanBeRenewed) {
    const FileDescriptor event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    Recorded watch;
    device_->watch(event.get(), watch);
    device_->wait(clock_->now_ns() + 1'000'000);
    EXPECT_EQ(watch.completions, 0);
    for (int round = 1; round <= 3; ++round) {
        ASSERT_EQ(::eventfd_write(event.get(), 1), 0);
        const std::int64_t deadline_ns = clock_->now_ns() + kLongEnough_ns;
        while (watch.completions < round && clock_->now_ns() < deadline_ns) device_->wait(deadline_ns);
        ASSERT_EQ(watch.completions, round);
        EXPECT_GE(watch.result, 0);
        eventfd_t count = 0;
        ASSERT_EQ(::eventfd_read(event.get(), &count), 0);
        if (round < 3) device_->watch(event.get(), watch);
    }
}

TEST_P(DeviceContract, CancelledWatchReportsItsCancellation) {
    const FileDescriptor event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    Recorded submitted, fresh;
    device_->watch(event.get(), submitted);
    device_->wait(clock_->now_ns());
    device_->cancel(submitted);
    device_->watch(event.get(), fresh);
    device_->cancel(fresh);
    EXPECT_EQ(submitted.completions, 0);
    finish({&submitted, &fresh});
    EXPECT_EQ(submitted.result, -ECANCELED);
    EXPECT_EQ(fresh.result, -ECANCELED);
    device_->cancel(fresh);  // no effect: the watch has already ended
    device_->wait(clock_->now_ns());
    EXPECT_EQ(fresh.completions, 1);
}

TEST_P(DeviceContract, CancellingAReadCompletesItExactlyOnce) {
    const int fd = open(path("file"), O_RDWR | O_CREAT);
    const Pages memory(20 * 4096, 2);
    EXPECT_EQ(write(fd, memory.span(), 0), 20 * 4096);
    std::vector<Recorded> reads(20);
    for (std::size_t i = 0; i < reads.size(); ++i) {
        device_->read(fd, memory.span().subspan(i * 4096, 4096), i * 4096, reads[i]);
        device_->cancel(reads[i]);
    }
    for (const Recorded& operation : reads) {
        finish({&operation});
        EXPECT_THAT(operation.result, testing::AnyOf(4096, -ECANCELED));
    }
    device_->close(fd);
}

TEST_P(DeviceContract, NothingCompletesInsideAStartCall) {
    const std::string file = path("file");
    const int fd = open(file, O_RDWR | O_CREAT);
    const FileDescriptor event(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
    const Pages memory(4096, 2);
    struct statx into{};
    Recorded opened, stated, read_, written, allocated, unlinked, watched;
    const auto none_completed = [&] {
        return opened.completions + stated.completions + read_.completions + written.completions +
                   allocated.completions + unlinked.completions + watched.completions ==
               0;
    };
    device_->open(file.c_str(), O_RDONLY, 0, opened);
    EXPECT_TRUE(none_completed());
    device_->stat(fd, into, stated);
    EXPECT_TRUE(none_completed());
    device_->read(fd, memory.span().first(0), 0, read_);
    EXPECT_TRUE(none_completed());
    device_->write(fd, memory.span().first(0), 0, written);
    EXPECT_TRUE(none_completed());
    device_->allocate(fd, 4096, allocated);
    EXPECT_TRUE(none_completed());
    device_->unlink(file.c_str(), unlinked);
    EXPECT_TRUE(none_completed());
    device_->watch(event.get(), watched);
    EXPECT_TRUE(none_completed());
    finish({&opened, &stated, &read_, &written, &allocated, &unlinked, &watched});
    if (opened.result >= 0) device_->close(opened.result);
    device_->close(fd);
}

TEST_P(DeviceContract, AcceptsFarMoreOperationsThanTheQueueDepth) {
    const int fd = open(path("file"), O_RDWR | O_CREAT);
    constexpr std::size_t kCount = 5000, kBytes = 64;
    std::vector<Recorded> writes(kCount), reads(kCount);
    const Pages out(kCount * kBytes, 11), in(kCount * kBytes);
    for (std::size_t i = 0; i < kCount; ++i)
        device_->write(fd, out.span().subspan(i * kBytes, kBytes), i * kBytes, writes[i]);
    for (const Recorded& operation : writes) finish({&operation});
    for (std::size_t i = 0; i < kCount; ++i)
        device_->read(fd, in.span().subspan(i * kBytes, kBytes), i * kBytes, reads[i]);
    for (const Recorded& operation : reads) {
        finish({&operation});
        ASSERT_EQ(operation.result, static_cast<std::int32_t>(kBytes));
    }
    EXPECT_EQ(in.text(), out.text());
    device_->close(fd);
}

// A chain that starts its next link from `done`, as every state machine on a Device does.
struct Chain : Operation {
    Device* device = nullptr;
    int fd = -1;
    std::span<std::byte> memory;
    int links = 0;
};

TEST_P(DeviceContract, DoneMayStartTheNextOperation) {
    const int fd = open(path("file"), O_RDWR | O_CREAT);
    const Pages memory(4096, 4);
    EXPECT_EQ(write(fd, memory.span(), 0), 4096);
    Chain chain;
    chain.device = device_.get();
    chain.fd = fd;
    chain.memory = memory.span();
    chain.done = [](Operation& operation, std::int32_t result) noexcept {
        auto& self = static_cast<Chain&>(operation);
        if (result == 4096 && ++self.links < 100) self.device->read(self.fd, self.memory, 0, self);
    };
    device_->read(fd, memory.span(), 0, chain);
    const std::int64_t deadline_ns = clock_->now_ns() + kLongEnough_ns;
    while (chain.links < 100 && clock_->now_ns() < deadline_ns) device_->wait(deadline_ns);
    EXPECT_EQ(chain.links, 100);
    device_->close(fd);
}

TEST_P(DeviceContract, WaitReturnsAtItsDeadline) {
    const FileDescriptor event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    Recorded watch;
    device_->watch(event.get(), watch);
    device_->wait(std::numeric_limits<std::int64_t>::min());
    const std::int64_t deadline_ns = clock_->now_ns() + 20'000'000;
    for (int calls = 0; clock_->now_ns() < deadline_ns; ++calls) {
        ASSERT_LT(calls, 1000) << "wait does not sleep";
        device_->wait(deadline_ns);
    }
    EXPECT_EQ(watch.completions, 0);
}

TEST_P(DeviceContract, StopsCleanlyWithOperationsInFlight) {
    const std::string file = path("file");
    const FileDescriptor event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const int fd = open(file, O_RDWR | O_CREAT);
    const std::size_t before = open_descriptors() - 1;  // does not count fd
    Recorded watch, started;
    std::vector<Recorded> reads(200), opens(50);
    const Pages memory(1 << 20, 1);
    EXPECT_EQ(write(fd, memory.span(), 0), 1 << 20);
    device_->watch(event.get(), watch);
    device_->read(fd, memory.span().last(4096), 0, started);
    device_->wait(clock_->now_ns());
    for (std::size_t i = 0; i < reads.size(); ++i)
        device_->read(fd, memory.span().subspan(i * 4096, 4096), 0, reads[i]);
    for (Recorded& operation : opens) device_->open(file.c_str(), O_RDONLY, 0, operation);
    device_->stop();
    for (const Recorded& operation : reads) EXPECT_EQ(operation.completions, 0);
    EXPECT_EQ(watch.completions, 0);
    device_->cancel(watch);
    device_->close(fd);
    EXPECT_EQ(::fcntl(fd, F_GETFD), -1) << "close works at once after stop";
    device_.reset();
    EXPECT_LE(open_descriptors(), before) << "descriptors of unfinished opens were left behind";
}

TEST_P(DeviceContract, ClosedDescriptorIsFreed) {
    const int fd = open(path("file"), O_RDWR | O_CREAT);
    device_->close(fd);
    const std::int64_t deadline_ns = clock_->now_ns() + kSecond_ns * 10;
    while (::fcntl(fd, F_GETFD) != -1 && clock_->now_ns() < deadline_ns) device_->wait(clock_->now_ns() + 1'000'000);
    EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
}

}  // namespace
}  // namespace larder::cache
