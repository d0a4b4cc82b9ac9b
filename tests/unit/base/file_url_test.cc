#include "base/file_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace larder {
namespace {

using testing::HasSubstr;

TEST(FileUrl, UrlNamesAnAbsolutePath) {
    EXPECT_EQ(path_of_file_url("file:///data/images").value(), "/data/images");
    EXPECT_EQ(path_of_file_url("file:///data/images//").value(), "/data/images");
    EXPECT_EQ(path_of_file_url("file://localhost/data").value(), "/data");
    EXPECT_EQ(path_of_file_url("file:///").value(), "/");
    EXPECT_EQ(path_of_file_url("file:///my%20data/100%25%c3%A9 x").value(), "/my data/100%\xc3\xa9 x");
}

TEST(FileUrl, InvalidUrlErrorSaysWhatIsWrong) {
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

TEST(FileUrl, PathsSurviveTheRoundTrip) {
    for (const std::string path : {"/", "/data/images", "/100% real/a%20b", "/why?/#1", "/sp ace/\xc3\xa9"}) {
        EXPECT_EQ(path_of_file_url(file_url_of_path(path)).value(), path);
    }
}

}  // namespace
}  // namespace larder
