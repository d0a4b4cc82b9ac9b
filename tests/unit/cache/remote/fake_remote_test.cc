// Other tests rely on the fake remote, so it has tests of its own.

#include "tests/support/fake_remote.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace larder::test {
namespace {

using cache::RemoteRead;
using protocol::BlockStatus;

struct Read : RemoteRead {
    Read(std::string_view object, std::uint64_t size, std::uint64_t from, std::size_t bytes) : content(bytes, '\0') {
        path = object;
        object_bytes = size;
        offset = from;
        into = std::as_writable_bytes(std::span(content));
        done = [](RemoteRead& read, BlockStatus given, int) noexcept {
            auto& self = static_cast<Read&>(read);
            self.status = given;
            ++self.completions;
        };
    }
    std::string content;
    BlockStatus status = BlockStatus::ok;
    int completions = 0;
};

TEST(FakeRemote, DeliversAfterItsDelayAndChecksLikeARealRemote) {
    FakeDisk disk;
    ManualClock clock;
    FakeDevice device(disk, clock);
    FakeRemote remote(device, 5000);
    remote.put("x", "0123456789");
    Read good("x", 10, 2, 3), changed("x", 11, 0, 3), missing("y", 10, 0, 3), beyond("x", 10, 8, 3);
    for (Read* read : {&good, &changed, &missing, &beyond}) remote.read(*read);
    device.wait(4999);
    EXPECT_EQ(good.completions, 0);
    device.wait(1'000'000);
    EXPECT_EQ(clock.now_ns(), 5000);
    EXPECT_EQ(good.content, "234");
    EXPECT_EQ(changed.status, BlockStatus::object_changed);
    EXPECT_EQ(missing.status, BlockStatus::object_missing);
    EXPECT_EQ(beyond.status, BlockStatus::object_truncated);
    EXPECT_EQ(remote.bytes_delivered(), 3u);
}

TEST(FakeRemote, FaultHitsOnlyMatchingReads) {
    FakeDisk disk;
    ManualClock clock;
    FakeDevice device(disk, clock);
    FakeRemote remote(device);
    remote.put("a/x", "0123456789");
    remote.put("b/x", "0123456789");
    remote.inject({.path_part = "a/", .skip = 1, .times = 1});
    std::vector<BlockStatus> statuses;
    for (const char* path : {"a/x", "b/x", "a/x", "a/x"}) {
        Read read(path, 10, 0, 10);
        remote.read(read);
        device.wait(clock.now_ns() + 1'000'000'000);
        statuses.push_back(read.status);
    }
    EXPECT_EQ(statuses, (std::vector{BlockStatus::ok, BlockStatus::ok, BlockStatus::remote_failed, BlockStatus::ok}));
}

}  // namespace
}  // namespace larder::test
