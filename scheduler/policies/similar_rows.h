#pragma once

// Makes similar jobs equal if there are more kinds of jobs than a linear program should have. A job is a row of
// numbers. The rows are divided into boxes: the box with the largest error is divided next, until there are `kinds_max`
// boxes. Then all rows of a box are replaced by their mean. Pure, and the same on every machine.

#include <cstddef>
#include <span>

namespace larder::scheduler {

// `rows` has rows of `width` numbers, 0 or more, each. The first `exact` numbers of a row are not changed, and a 0 is
// not merged with other numbers. Rows that differ in an exact number or in a 0 stay apart, even if more than
// `kinds_max` kinds remain.
void merge_similar_rows(std::span<double> rows, std::size_t width, std::size_t exact, std::size_t kinds_max);

}  // namespace larder::scheduler
