#pragma once

// Resolves what the jobs of one submission wait for: turns names and numbers into ids, including those of the same
// submission, and finds cycles. Pure.

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "scheduler/live/submission.h"
#include "scheduler/placement/placer.h"

namespace larder::scheduler {

// A job submitted earlier. FindEarlierJob returns nullopt if no job has that name or number.
struct EarlierJob {
    JobId id = 0;
    bool succeeded = false;  // need not be waited for
    std::string ended;       // how it ended otherwise; empty: it did not
};
using FindEarlierJob = std::function<std::optional<EarlierJob>(const std::string& name_or_number)>;

// Returns, for each of `jobs`, the ids it waits for. The jobs get the ids from `first_id` on. Names in the same
// submission take precedence over earlier ones. not_found: there is no such job. invalid_argument: there is a cycle,
// which the message spells out. changed: a job has already failed or was cancelled.
Result<std::vector<std::vector<JobId>>> resolve_dependencies(std::span<const Submission> jobs, JobId first_id,
                                                             const FindEarlierJob& find);

}  // namespace larder::scheduler
