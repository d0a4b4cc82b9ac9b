#include "allocator/protocol/objective.h"

#include <gtest/gtest.h>

namespace larder::allocator {
namespace {

TEST(Objective, NamesAreReadBack) {
    for (const ObjectiveKind kind : {ObjectiveKind::efficiency, ObjectiveKind::max_min, ObjectiveKind::throughput,
                                     ObjectiveKind::utilisation, ObjectiveKind::equal_shares, ObjectiveKind::pinned}) {
        ASSERT_FALSE(name(kind).empty());
        EXPECT_EQ(parse_objective(name(kind)), kind);
    }
}

TEST(Objective, FormerNamesAreRefusedWithTheNewOnes) {
    EXPECT_EQ(parse_objective("max_min").error().message, "objective \"max_min\" is now called \"max-min\"");
    EXPECT_EQ(parse_objective("static").error().message, "objective \"static\" is now called \"equal-shares\"");
    EXPECT_EQ(
        parse_objective("luck").error().message,
        "\"luck\" is not an objective; known: efficiency, max-min, throughput, utilisation, equal-shares, pinned");
}

}  // namespace
}  // namespace larder::allocator
