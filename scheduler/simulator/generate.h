#pragma once

// Traces that are drawn, not recorded: single-GPU jobs that arrive as a Poisson process, with the durations of Gavel's
// evaluation (OSDI '20): 10^x minutes, x uniform on [1.5, 3] for four jobs in five, on [3, 4] for the others.

#include <string_view>

#include "scheduler/simulator/trace.h"

namespace larder::scheduler {

struct PoissonOptions {
    double jobs_per_hour = 1;
    std::uint64_t jobs = 1000;
    std::uint64_t seed = 1;
};

// "poisson:JOBS_PER_HOUR,JOBS".
Result<PoissonOptions> parse_poisson(std::string_view text);
Trace generate_poisson(const PoissonOptions& options);

}  // namespace larder::scheduler
