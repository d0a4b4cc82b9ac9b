#include "cache/remote/remote_problems.h"

#include <gtest/gtest.h>

namespace larder::cache {
namespace {

TEST(RemoteProblems, KeepsTheLatestProblemOfEachObject) {
    RemoteProblems problems;
    EXPECT_EQ(problems.latest("a"), "");
    problems.note("a", "HTTP 403");
    problems.note("b", "HTTP 500");
    problems.note("a", "HTTP 404");
    EXPECT_EQ(problems.latest("a"), "HTTP 404");
    EXPECT_EQ(problems.latest("b"), "HTTP 500");
}

TEST(RemoteProblems, DropsTheOldestObjectAboveTheLimit) {
    RemoteProblems problems;
    for (std::size_t i = 0; i < RemoteProblems::kObjectsMax; ++i) problems.note(std::to_string(i), "first");
    problems.note("0", "again");
    problems.note("one more", "first");
    EXPECT_EQ(problems.latest("0"), "again");
    EXPECT_EQ(problems.latest("1"), "");
    EXPECT_EQ(problems.latest("one more"), "first");
}

}  // namespace
}  // namespace larder::cache
