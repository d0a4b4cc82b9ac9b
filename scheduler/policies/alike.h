#pragma once

// Treats similar jobs as equal if there are more kinds of jobs than a linear program should have. Rows of numbers are
// divided into boxes, always the box with the largest error next, and all rows of a box get their mean. Pure, and the
// same on every machine.

#include <cstddef>
#include <span>

namespace larder::scheduler {

// `rows` has rows of `width` numbers, 0 or more, each. The first `exact` numbers of a row are not changed, and a 0 is
// not merged with other numbers. Rows that differ in an exact number or in a 0 stay apart, even if more than
// `kinds_max` kinds remain.
void merge_similar_rows(std::span<double> rows, std::size_t width, std::size_t exact, std::size_t kinds_max);

}  // namespace larder::scheduler
