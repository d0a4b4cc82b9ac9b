#pragma once

// The interface through which benches compare caches. A feeder reads a dataset of equal blocks epoch after epoch, each
// in a new random order, and counts blocks, hits and bytes.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/error.h"

namespace larder::bench {

struct FeederTotals {
    std::uint64_t blocks = 0;
    std::uint64_t hits = 0;
    std::uint64_t bytes = 0;
};

struct FedBatch {
    std::uint64_t bytes = 0;
    std::int64_t reading_ns = 0;  // time in `next` spent touching the bytes: the consumer's own work
};

class Feeder {
public:
    virtual ~Feeder() = default;
    // Waits for the next batch and reads every byte of it. Returns nothing at the end of an epoch; the next call starts
    // another.
    virtual Result<std::optional<FedBatch>> next() = 0;
    // Totals since construction.
    virtual FeederTotals totals() const = 0;
};

// Reads every byte, as a consumer would.
std::uint64_t sum_bytes(const std::byte* data, std::size_t count);

}  // namespace larder::bench
