#pragma once

// Jobs whose numbers are much alike are taken for equal, where there are more kinds of them than a linear program
// should have. Rows of numbers are put into so many boxes, always the box divided next that is farthest from being of
// one kind, and all rows of a box get their mean. Pure, and the same on every machine.

#include <cstddef>
#include <span>

namespace larder::scheduler {

// `rows`: of `width` numbers, 0 or more, each. The first `exact` numbers of a row are as they are, and no 0 is taken
// for anything else: where rows differ in those, there may be more than `kinds_max` kinds in the end.
void take_alike_for_equal(std::span<double> rows, std::size_t width, std::size_t exact, std::size_t kinds_max);

}  // namespace larder::scheduler
