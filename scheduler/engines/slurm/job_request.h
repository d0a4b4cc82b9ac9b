#pragma once

// Reads the line by which a batch script asks Larder for cache and bandwidth:
//   #BB_LUA larder dataset=imagenet cache=200GiB bandwidth=500MB/s gpus=8
// Slurm reads such lines up to the first line that is neither empty nor a comment, and so does this parser.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace larder::scheduler::slurm {

struct JobRequest {
    std::string dataset;
    std::uint64_t cache_bytes = 0;          // to reserve and to warm; 0: the plan decides
    double bandwidth_bytes_per_second = 0;  // of the remote, at least; 0: the plan decides
    std::uint64_t gpus = 0;                 // 0: not given
};

// Returns the licences that stand for the job's bandwidth in Slurm: one for each MB/s, rounded up.
std::uint64_t licence_count(const JobRequest& request);

// Returns nullopt if the script has no such line. Errors are invalid_argument and name the word.
Result<std::optional<JobRequest>> parse_job_request(std::string_view script);

}  // namespace larder::scheduler::slurm
