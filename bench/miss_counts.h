#pragma once

// The counts expected of a job that read whole epochs of a dataset with an empty cache: its loader and the daemon each
// count every block and byte once an epoch, all from the remote. Pure.

#include <cstdint>

#include "base/error.h"

namespace larder::bench {

struct MissCounts {
    // Counts of the dataset.
    std::uint64_t blocks = 0;
    std::uint64_t bytes = 0;
    // Counts of the job's loader.
    std::uint64_t epochs = 0;
    std::uint64_t blocks_read = 0;
    std::uint64_t blocks_hit = 0;
    std::uint64_t bytes_read = 0;
    // Counts of the daemon for the job.
    std::uint64_t misses = 0;
    std::uint64_t hits = 0;
    std::uint64_t remote_bytes = 0;       // delivered to the loader
    std::uint64_t remote_bytes_read = 0;  // read from the remote
    std::uint64_t remote_errors = 0;
};

// Returns an error that names the wrong count, its value and the expected value.
Result<void> check(const MissCounts& counts);

}  // namespace larder::bench
