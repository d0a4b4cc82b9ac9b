#include "scheduler/live/dependencies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace larder::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Submission job(const std::string& name, std::vector<std::string> after = {}) {
    return {.name = name, .after = std::move(after)};
}

std::optional<EarlierJob> find(const std::string& name) {
    if (name == "runs" || name == "3") return EarlierJob{.id = 3};
    if (name == "done") return EarlierJob{.id = 4, .succeeded = true};
    if (name == "broken") return EarlierJob{.id = 5, .ended = "has failed"};
    return std::nullopt;
}

Result<std::vector<std::vector<JobId>>> resolve(const std::vector<Submission>& jobs) {
    return resolve_dependencies(jobs, 10, find);
}

TEST(Dependencies, NamesAndNumbersBecomeIds) {
    const auto after = resolve({job("a", {"c", "runs", "3"}), job("b", {"done"}), job("c")});
    ASSERT_TRUE(after) << after.error().message;
    EXPECT_THAT(*after, ElementsAre(ElementsAre(3, 12), IsEmpty(), IsEmpty()));
}

TEST(Dependencies, CycleIsRefusedAndNamed) {
    const auto circle = resolve({job("first", {"c"}), job("a", {"b"}), job("b", {"c"}), job("c", {"a"})});
    ASSERT_FALSE(circle);
    EXPECT_EQ(circle.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(circle.error().message, HasSubstr("in a circle: c after a after b after c"));
    const auto itself = resolve({job("a", {"a"})});
    ASSERT_FALSE(itself);
    EXPECT_THAT(itself.error().message, HasSubstr("a after a"));
}

TEST(Dependencies, DiamondIsNoCycle) {
    EXPECT_TRUE(resolve({job("top", {"left", "right"}), job("left", {"end"}), job("right", {"end"}), job("end")}));
}

TEST(Dependencies, UnknownOrFailedPredecessorIsRefused) {
    EXPECT_EQ(resolve({job("a", {"nobody"})}).error().code, ErrorCode::not_found);
    const auto broken = resolve({job("a", {"broken"})});
    EXPECT_EQ(broken.error().code, ErrorCode::changed);
    EXPECT_THAT(broken.error().message, HasSubstr("\"broken\" has failed already"));
}

}  // namespace
}  // namespace larder::scheduler
