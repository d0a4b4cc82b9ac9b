#pragma once

// The smallest linear programs that say what lp.h says, for jobs that each read one cache and have no caps. A floor
// makes a job's need for bandwidth a curve of two pieces over its cache, so each cache gets one variable for each piece
// of the sum of its jobs' curves. No job has a variable or a row. The pieces of a cache save less and less, so a
// program takes them in order by itself. The assign bench times these; tests compare them with lp.h.

#include <cstdint>
#include <vector>

#include "tests/oracle/lp.h"

namespace larder::oracle {

// The simplex method. Neither is the faster one for every program.
enum class Simplex : std::uint8_t { primal, dual };

LpSplit small_least_remote(const LpProblem& problem, const std::vector<double>& rates, bool keep_shares,
                           Simplex simplex);
double small_largest_sum(const LpProblem& problem, const std::vector<double>& cache, Simplex simplex);
double small_max_min_level(const LpProblem& problem, Simplex simplex);

}  // namespace larder::oracle
