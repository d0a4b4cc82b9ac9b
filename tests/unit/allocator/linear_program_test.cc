#include "allocator/linear_program.h"

#include <gtest/gtest.h>

namespace larder::allocator {
namespace {

TEST(LinearProgram, FindsTheCheapestPointWithinTheRows) {
    LinearProgram program;
    const int x = program.add_column(0, LinearProgram::kNoBound, -3);
    const int y = program.add_column(0, 2, -2);
    program.add(x, 1);
    program.add(y, 0.5);
    program.add(y, 0.5);  // added to the term before
    program.end_row(-LinearProgram::kNoBound, 4);
    program.add(x, 1);
    program.end_row(0, 3);
    const auto point = program.minimise();
    ASSERT_TRUE(point);
    EXPECT_NEAR(point->at(0), 3, 1e-9);
    EXPECT_NEAR(point->at(1), 1, 1e-9);
}

TEST(LinearProgram, HasNoPointWhereRowsContradictEachOther) {
    LinearProgram program;
    const int x = program.add_column(0, 1);
    program.add(x, 1);
    program.end_row(2, LinearProgram::kNoBound);
    EXPECT_FALSE(program.minimise());
}

}  // namespace
}  // namespace larder::allocator
