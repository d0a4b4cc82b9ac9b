#pragma once

// What a job that read whole epochs of a dataset with nothing cached must have counted, on both sides: its loader each
// block and byte once an epoch, all from the remote, and the daemon the same. Pure.

#include <cstdint>

#include "base/error.h"

namespace larder::bench {

struct MissCounts {
    // The dataset.
    std::uint64_t blocks = 0;
    std::uint64_t bytes = 0;
    // Its loader.
    std::uint64_t epochs = 0;
    std::uint64_t blocks_read = 0;
    std::uint64_t blocks_hit = 0;
    std::uint64_t bytes_read = 0;
    // The daemon, of the job.
    std::uint64_t misses = 0;
    std::uint64_t hits = 0;
    std::uint64_t remote_bytes = 0;       // delivered
    std::uint64_t remote_bytes_read = 0;  // from the remote
    std::uint64_t remote_errors = 0;
};

// An error that names the count that is wrong, what it is and what it should be.
Result<void> check(const MissCounts& counts);

}  // namespace larder::bench
