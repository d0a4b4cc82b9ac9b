#pragma once

// Generates traces with deadlines, of the shape of Chronus's own mixed trace (SoCC '21). Its jobs are Philly's jobs of
// 20 minutes to 3 days. They arrive within two weeks, at Philly's times of the week. 60% of the jobs have soft
// deadlines with four times and the values 10, 8, 5 and 2, 30% have strict deadlines, and 10% none.
//
// The first time is 1.1 to 2 times the job's duration after its submission, and up to an hour more. A soft job's second
// and third time each come 0.12 durations later, the fourth 0.4 durations later, each at least 20 to 60 minutes later.

#include <cstdint>
#include <string>

#include "scheduler/simulator/trace.h"

namespace larder::scheduler {

// Draws `jobs` jobs of the trace in `path`, each at most once. Errors are those of read_trace(). invalid_argument: the
// trace has fewer jobs of such durations.
Result<Trace> draw_as_chronus(const std::string& path, std::uint64_t jobs, std::uint64_t seed);

}  // namespace larder::scheduler
