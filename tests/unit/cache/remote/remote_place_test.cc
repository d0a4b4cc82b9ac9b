#include "cache/remote/remote_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/another_user.h"
#include "tests/support/fake_device.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using testing::HasSubstr;

class RemoteOfPlace : public testing::Test {
protected:
    Result<std::unique_ptr<Remote>> remote_of(const std::string& url) {
        const auto place = RemotePlace::open(url, {}, nullptr);
        if (!place) return std::unexpected(place.error());
        return (*place)->remote(device_);
    }
    std::string error(const std::string& url) {
        const auto remote = remote_of(url);
        return remote ? "" : remote.error().message;
    }

    test::TempDirectory directory_;
    test::FakeDisk disk_;
    ManualClock clock_;
    test::FakeDevice device_{disk_, clock_};
};

TEST_F(RemoteOfPlace, NetworkUrlWithoutNetworkIsUnsupported) {
    const auto remote = remote_of("s3://bucket/data");
    ASSERT_FALSE(remote);
    EXPECT_EQ(remote.error().code, ErrorCode::unsupported);
    EXPECT_THAT(remote.error().message, testing::AllOf(HasSubstr("s3://bucket/data"), HasSubstr("network")));
}

TEST_F(RemoteOfPlace, DirectoryMustExistAndBeReadable) {
    EXPECT_EQ(error("file://" + directory_.path().string()), "");
    EXPECT_THAT(error("file://" + (directory_ / "missing")), HasSubstr("does not exist"));
    std::ofstream(directory_ / "file") << "x";
    EXPECT_THAT(error("file://" + (directory_ / "file")), HasSubstr("is not a directory"));

    const std::string closed = directory_ / "closed";
    ASSERT_EQ(::mkdir(closed.c_str(), 0), 0);
    ASSERT_EQ(::chmod(directory_.path().c_str(), 0755), 0);
    const test::AnotherUser other;
    EXPECT_THAT(error("file://" + closed), HasSubstr("may not be read"));
}

}  // namespace
}  // namespace larder::cache
