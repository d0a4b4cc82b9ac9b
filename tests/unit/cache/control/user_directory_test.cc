// Users and groups from a name service that answers, and from one that hangs.

#include "cache/control/user_directory.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "cache/control/dataset_access.h"

namespace larder::cache {
namespace {

std::atomic<int> asked = 0;
std::atomic<bool> hangs = false;

void wait_while_hanging() {
    ++asked;
    while (hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

constexpr UserDirectory::Service kService{.user_name =
                                              [](std::uint32_t uid) {
                                                  wait_while_hanging();
                                                  return "user-" + std::to_string(uid);
                                              },
                                          .group_name =
                                              [](std::uint32_t gid) {
                                                  wait_while_hanging();
                                                  return "group-" + std::to_string(gid);
                                              },
                                          .is_member =
                                              [](std::uint32_t uid, std::uint32_t, std::uint32_t group) {
                                                  wait_while_hanging();
                                                  return uid == group;
                                              }};

class UserDirectoryTest : public ::testing::Test {
protected:
    UserDirectoryTest() { asked = 0; }
    ~UserDirectoryTest() override { hangs = false; }

    void learn() {
        bool done = false;
        users.learn(wanted, [&] { done = true; });
        while (!done) control.run_one();
    }

    boost::asio::io_context control{1};
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard = make_work_guard(control);
    ManualClock clock;
    UserDirectory users{control, clock, kService};
    const UserDirectory::Wanted wanted{.users = {7}, .groups = {8}, .memberships = {{9, 1, 9}, {9, 1, 10}}};
};

TEST_F(UserDirectoryTest, LearnsAndKeepsForAMinute) {
    EXPECT_EQ(users.user_name(7), "7");
    EXPECT_EQ(users.is_member({9, 1, 9}), std::nullopt);
    learn();
    EXPECT_EQ(users.user_name(7), "user-7");
    EXPECT_EQ(users.group_name(8), "group-8");
    EXPECT_EQ(users.is_member({9, 1, 9}), true);
    EXPECT_EQ(users.is_member({9, 1, 10}), false);
    EXPECT_EQ(asked, 4);
    learn();
    EXPECT_EQ(asked, 4);
    clock.advance_ns(UserDirectory::kKept_ns);
    learn();
    EXPECT_EQ(asked, 8);
}

TEST_F(UserDirectoryTest, ServiceThatHangsHoldsUpNobody) {
    hangs = true;
    learn();
    EXPECT_GT(asked, 0) << "and all that was asked still waits";
    EXPECT_EQ(users.user_name(7), "7") << "the number stands for the name";
    EXPECT_EQ(users.is_member({9, 1, 9}), std::nullopt);
    hangs = false;
    while (users.user_name(7) != "user-7") learn();
    EXPECT_EQ(users.is_member({9, 1, 9}), true);
}

TEST_F(UserDirectoryTest, MayBeDestroyedWhileTheServiceHangs) {
    hangs = true;
    UserDirectory other(control, clock, kService);
    other.learn(wanted, [] { FAIL() << "nobody waits any more"; });
    while (asked == 0) std::this_thread::yield();
}

TEST(DatasetAccess, GroupsDecideOnlyIfTheirBitsDiffer) {
    EXPECT_EQ(may_read_without_groups({.owner = 1, .group = 2, .mode = 0640}, 1), true);
    EXPECT_EQ(may_read_without_groups({.owner = 1, .group = 2, .mode = 0640}, 0), true);
    EXPECT_EQ(may_read_without_groups({.owner = 1, .group = 2, .mode = 0640}, 3), std::nullopt);
    EXPECT_EQ(may_read_without_groups({.owner = 1, .group = 2, .mode = 0644}, 3), true);
    EXPECT_EQ(may_read_without_groups({.owner = 1, .group = 2, .mode = 0600}, 3), false);
    EXPECT_TRUE(may_read_as({.owner = 1, .group = 2, .mode = 0640}, 3, true));
    EXPECT_FALSE(may_read_as({.owner = 1, .group = 2, .mode = 0640}, 3, false));
    EXPECT_TRUE(may_read_as({.owner = 1, .group = 2, .mode = 0604}, 3, false));
    EXPECT_FALSE(may_read_as({.owner = 1, .group = 2, .mode = 0604}, 3, true));
}

}  // namespace
}  // namespace larder::cache
