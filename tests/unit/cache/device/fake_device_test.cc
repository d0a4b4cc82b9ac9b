// Tests the fake device's own features: order by seed, faults, a full disk, crashes. Other tests rely on them.

#include "tests/support/fake_device.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

namespace larder::test {
namespace {

struct Recorded : cache::Operation {
    Recorded() {
        done = [](cache::Operation& operation, std::int32_t given) noexcept {
            auto& self = static_cast<Recorded&>(operation);
            self.result = given;
            ++self.completions;
        };
    }
    std::int32_t result = 0;
    int completions = 0;
};

// A device with one file open for writing.
struct Bench {
    explicit Bench(const FakeDeviceOptions& options = {}, std::uint64_t bytes_max = 1 << 30)
        : disk(bytes_max), device(disk, clock, options) {
        Recorded opened;
        device.open("/f", O_RDWR | O_CREAT, 0644, opened);
        settle();
        fd = opened.result;
    }
    ~Bench() { device.close(fd); }
    void settle() {
        while (!device.crashed() && device.in_flight() > 0) device.wait(device.next_completion_ns());
    }
    std::int32_t write(std::string_view text, std::uint64_t offset) {
        Recorded written;
        device.write(fd, std::as_bytes(std::span(text)), offset, written);
        settle();
        return written.completions == 1 ? written.result : -9999;
    }
    FakeDisk disk;
    ManualClock clock;
    FakeDevice device;
    int fd = -1;
};

TEST(FakeDevice, SeedDeterminesTheCompletionOrder) {
    const auto trace = [](std::uint64_t seed) {
        Bench bench({.seed = seed, .jitter_ns = 1'000'000});
        std::vector<Recorded> writes(50);
        const std::string text(64, 'x');
        for (std::size_t i = 0; i < writes.size(); ++i)
            bench.device.write(bench.fd, std::as_bytes(std::span(text)), i * 64, writes[i]);
        bench.settle();
        return bench.device.trace_hash();
    };
    EXPECT_EQ(trace(1), trace(1));
    EXPECT_NE(trace(1), trace(2));
}

TEST(FakeDevice, FullDiskRefusesWritesAndUnlinkFreesSpace) {
    Bench bench({}, 1000);
    EXPECT_EQ(bench.write(std::string(900, 'a'), 0), 900);
    EXPECT_EQ(bench.write(std::string(200, 'b'), 900), -ENOSPC);
    EXPECT_EQ(bench.write(std::string(200, 'b'), 500), 200);
    bench.disk.unlink("/f");
    EXPECT_EQ(bench.disk.bytes_used(), 0u);
}

TEST(FakeDevice, FaultsTearShortenAndFlipWrites) {
    Bench bench;
    bench.device.inject({.action = FakeAction::write, .kind = Fault::Kind::torn, .path_part = "f"});
    EXPECT_EQ(bench.write(std::string(2048, 'a'), 0), -EIO);
    EXPECT_EQ(bench.disk.content("/f"), std::string(1024, 'a'));
    bench.device.inject({.action = FakeAction::write, .kind = Fault::Kind::short_count});
    EXPECT_EQ(bench.write(std::string(2048, 'b'), 0), 1024);
    bench.device.inject({.action = FakeAction::write, .kind = Fault::Kind::flip_bit});
    EXPECT_EQ(bench.write(std::string(2048, 'c'), 0), 2048);
    EXPECT_NE(bench.disk.content("/f"), std::string(2048, 'c'));
    bench.device.inject({.action = FakeAction::write, .kind = Fault::Kind::fail, .path_part = "other"});
    EXPECT_EQ(bench.write(std::string(2048, 'd'), 0), 2048);
}

TEST(FakeDevice, CrashStopsTheDeviceButKeepsTheDisk) {
    Bench bench;
    ASSERT_EQ(bench.write(std::string(4096, 'a'), 0), 4096);
    bench.device.inject({.action = FakeAction::write, .kind = Fault::Kind::crash});
    EXPECT_EQ(bench.write(std::string(4096, 'b'), 0), -9999);
    EXPECT_TRUE(bench.device.crashed());
    const std::string left = bench.disk.content("/f");
    ASSERT_EQ(left.size(), 4096u);
    const std::size_t landed = std::min(left.find('a'), left.size());
    EXPECT_EQ(landed % 512, 0u);
    EXPECT_EQ(left.substr(landed).find('b'), std::string::npos);

    const auto snapshot = bench.disk.snapshot();
    bench.disk.put("/f", "other");
    bench.disk.put("/g", "more");
    bench.disk.restore(snapshot);
    EXPECT_EQ(bench.disk.content("/f"), left);
    EXPECT_FALSE(bench.disk.exists("/g"));
}

}  // namespace
}  // namespace larder::test
