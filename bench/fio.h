#pragma once

// The peer of disk hits: fio (Axboe) reading one file at random with io_uring, O_DIRECT.

#include <cstdint>
#include <string>

#include "base/error.h"

namespace larder::bench {

struct FioOptions {
    std::string file;
    std::uint64_t file_bytes = 0;
    std::uint64_t block_bytes = 0;
    std::uint32_t depth = 1;
    double seconds = 1;
};

// Writes the file to read.
Result<void> fio_prepare(const FioOptions& options);
// Returns bytes/s of random reads.
Result<double> fio_random_read(const FioOptions& options);

}  // namespace larder::bench
