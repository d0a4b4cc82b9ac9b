#pragma once

// What one TCP connection over this machine's loopback carries: the limit for blocks that come from another daemon
// here.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"

namespace larder::bench {

// Bytes per second. One thread writes the blocks of `data` in a random order, this one reads them into `received`, as
// large, and sums every byte.
Result<double> loopback_rate(std::span<const std::byte> data, std::span<std::byte> received, std::uint64_t block_bytes,
                             std::uint64_t seed);

}  // namespace larder::bench
