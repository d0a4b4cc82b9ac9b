#pragma once

// Generates synthetic traces. `poisson` and `gavel`: single-GPU jobs that arrive as a Poisson process, with the
// durations of Gavel's evaluation (OSDI '20). A job takes 10^x minutes, with x uniform on [1.5, 3] for 80% of the jobs
// and on [3, 4] for the others. `chronus`: jobs drawn from the file of a trace, with deadlines (chronus_trace.h).

#include <string>
#include <string_view>

#include "scheduler/simulator/trace.h"

namespace larder::scheduler {

struct DrawnTrace {
    double jobs_per_hour = 1;
    std::uint64_t jobs = 1000;
    std::uint64_t seed = 1;
    // Draws the very jobs, with their models, that Gavel's simulator draws from the seed.
    bool as_gavel = false;
    std::string file;  // not empty: draws jobs of this trace, with deadlines
};

// True if the trace is to be drawn, so that it names no file.
bool is_drawn(std::string_view trace);
// Parses "poisson:JOBS_PER_HOUR,JOBS", "gavel:JOBS_PER_HOUR,JOBS" and "chronus:FILE,JOBS".
Result<DrawnTrace> parse_drawn(std::string_view text);
// Errors are those of the file's trace, and of too few jobs in the file.
Result<Trace> draw(const DrawnTrace& options);

}  // namespace larder::scheduler
