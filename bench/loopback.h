#pragma once

// The throughput of one TCP connection over this machine's loopback: the limit for blocks that come from another daemon
// on this machine.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"

namespace larder::bench {

// Returns bytes per second. One thread writes the blocks of `data` in a random order; the calling thread reads them
// into `received`, which is as large, and sums every byte.
Result<double> loopback_rate(std::span<const std::byte> data, std::span<std::byte> received, std::uint64_t block_bytes,
                             std::uint64_t seed);

}  // namespace larder::bench
