#include "cache/control/dataset_access.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace larder::cache {
namespace {

constexpr std::uint32_t kOwner = 4'000'001;
constexpr std::uint32_t kGroup = 4'000'002;
constexpr std::uint32_t kStranger = 4'000'003;

TEST(AccessTest, FirstMatchingClassDecides) {
    EXPECT_TRUE(may_read({kOwner, kGroup, 0400}, kOwner, kStranger));
    EXPECT_FALSE(may_read({kOwner, kGroup, 0044}, kOwner, kGroup)) << "the owner has the owner's bits only";
    EXPECT_TRUE(may_read({kOwner, kGroup, 0040}, kStranger, kGroup));
    EXPECT_FALSE(may_read({kOwner, kGroup, 0604}, kStranger, kGroup)) << "a member has the group's bits only";
    EXPECT_FALSE(may_read({kOwner, kGroup, 0640}, kStranger, kStranger));
    EXPECT_TRUE(may_read({kOwner, kGroup, 0604}, kStranger, kStranger));
}

TEST(AccessTest, SuperuserMayAlwaysRead) {
    EXPECT_TRUE(may_read({kOwner, kGroup, 0}, 0, 0));
}

TEST(AccessTest, UserAndGroupNamesMapToIdsAndBack) {
    EXPECT_EQ(user_id("root").value(), 0u);
    EXPECT_EQ(user_id("4000001").value(), kOwner);
    EXPECT_EQ(user_id("no-such-user-here").error().code, ErrorCode::not_found);
    EXPECT_EQ(group_id("root").value(), 0u);
    EXPECT_EQ(group_id("no-such-group-here").error().code, ErrorCode::not_found);
    EXPECT_EQ(user_name(0), "root");
    EXPECT_EQ(user_name(kOwner), "4000001");
    EXPECT_EQ(group_name(kGroup), "4000002");
}

TEST(AccessTest, ParsesAndFormatsModes) {
    EXPECT_EQ(parse_mode("0640").value(), 0640u);
    EXPECT_EQ(parse_mode("777").value(), 0777u);
    for (const char* wrong : {"", "64", "0888", "rw-r-----", "06400", "1777", "-640", "0x1f"}) {
        EXPECT_FALSE(parse_mode(wrong).has_value()) << wrong;
    }
    EXPECT_EQ(format_mode(0604), "0604");
    EXPECT_EQ(format_mode(0), "0000");
}

}  // namespace
}  // namespace larder::cache
