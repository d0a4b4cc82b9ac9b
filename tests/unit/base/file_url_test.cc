#include "base/file_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "cache/remote.h"
#include "tests/support/fake_device.h"
#include "tests/support/temp_directory.h"

namespace larder {
namespace {

using testing::HasSubstr;

TEST(FileUrl, names_an_absolute_path) {
    EXPECT_EQ(path_of_file_url("file:///data/images").value(), "/data/images");
    EXPECT_EQ(path_of_file_url("file:///data/images//").value(), "/data/images");
    EXPECT_EQ(path_of_file_url("file://localhost/data").value(), "/data");
    EXPECT_EQ(path_of_file_url("file:///").value(), "/");
    EXPECT_EQ(path_of_file_url("file:///my%20data/100%25%c3%A9 x").value(), "/my data/100%\xc3\xa9 x");
}

TEST(FileUrl, says_what_is_wrong) {
    for (const char* url : {"", "/data", "data", "://x"}) {
        const auto path = path_of_file_url(url);
        ASSERT_FALSE(path) << url;
        EXPECT_EQ(path.error().code, ErrorCode::invalid_argument);
        EXPECT_THAT(path.error().message, HasSubstr("file:///absolute/path"));
    }
    for (const char* url : {"file://data", "file://other-host/data", "file://"}) {
        const auto path = path_of_file_url(url);
        ASSERT_FALSE(path) << url;
        EXPECT_THAT(path.error().message, HasSubstr("must be absolute"));
    }
    for (const char* url : {"file:///100%", "file:///a%2", "file:///a%zz", "file:///a%-1"}) {
        const auto path = path_of_file_url(url);
        ASSERT_FALSE(path) << url;
        EXPECT_THAT(path.error().message, HasSubstr("%25"));
    }
    EXPECT_FALSE(path_of_file_url("file:///a%00b"));
}

class MakeRemote : public testing::Test {
protected:
    std::string error(const std::string& url) {
        const auto remote = make_remote(url, device_);
        return remote ? "" : remote.error().message;
    }

    test::TempDirectory directory_;
    test::FakeDisk disk_;
    ManualClock clock_;
    test::FakeDevice device_{disk_, clock_};
};

TEST_F(MakeRemote, other_schemes_are_unsupported_by_name) {
    const auto remote = make_remote("s3://bucket/data", device_);
    ASSERT_FALSE(remote);
    EXPECT_EQ(remote.error().code, ErrorCode::unsupported);
    EXPECT_THAT(remote.error().message, testing::AllOf(HasSubstr("s3://bucket/data"), HasSubstr("\"s3\"")));
}

TEST_F(MakeRemote, the_directory_must_be_there_and_readable) {
    EXPECT_EQ(error("file://" + directory_.path().string()), "");
    EXPECT_THAT(error("file://" + (directory_ / "missing")), HasSubstr("does not exist"));
    std::ofstream(directory_ / "file") << "x";
    EXPECT_THAT(error("file://" + (directory_ / "file")), HasSubstr("is not a directory"));

    const std::string closed = directory_ / "closed";
    ASSERT_EQ(::mkdir(closed.c_str(), 0), 0);
    ASSERT_EQ(::chmod(directory_.path().c_str(), 0755), 0);
    const bool is_root = ::geteuid() == 0;
    if (is_root) {
        ASSERT_EQ(::seteuid(65534), 0);
    }
    EXPECT_THAT(error("file://" + closed), HasSubstr("may not be read"));
    if (is_root) {
        ASSERT_EQ(::seteuid(0), 0);
    }
}

TEST(FileUrl, AnyPathComesBackFromItsUrl) {
    for (const std::string path : {"/", "/data/images", "/100% real/a%20b", "/why?/#1", "/sp ace/\xc3\xa9"}) {
        EXPECT_EQ(path_of_file_url(file_url_of_path(path)).value(), path);
    }
}

}  // namespace
}  // namespace larder
