#pragma once

// The interface behind which the curve compares caches: something that reads a dataset of equal blocks epoch after
// epoch, each in a new random order, and says what came from where.

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
    std::int64_t reading_ns = 0;  // of `next`, what reading the bytes through took: the consumer's own work
};

class Feeder {
public:
    virtual ~Feeder() = default;
    // Waits for the next batch and reads it through; nothing at the end of an epoch, after which the next begins.
    virtual Result<std::optional<FedBatch>> next() = 0;
    // Since it was made.
    virtual FeederTotals totals() const = 0;
};

// Every byte, as a consumer would touch it.
std::uint64_t sum_bytes(const std::byte* data, std::size_t count);

}  // namespace larder::bench
