#pragma once

// What the jobs of one submission wait for: names and numbers made ids, those of the same submission included, and
// circles found. Pure.

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "scheduler/live/submission.h"
#include "scheduler/placement/placer.h"

namespace larder::scheduler {

// A job of before: nothing: there is none of that name or number.
struct Earlier {
    JobId id = 0;
    bool succeeded = false;  // nothing to wait for
    std::string ended;       // it has ended otherwise: how
};
using FindEarlier = std::function<std::optional<Earlier>(const std::string& name_or_number)>;

// For each of `jobs`, which get the ids from `first_id` on, the ids it waits for. Names of the same submission go
// before earlier ones. not_found: there is no such job; invalid_argument: a circle, which the message spells out;
// changed: one has failed or was cancelled already.
Result<std::vector<std::vector<JobId>>> resolve_dependencies(std::span<const Submission> jobs, JobId first_id,
                                                             const FindEarlier& find);

}  // namespace larder::scheduler
