#pragma once

// A consumer that takes bytes at its ideal rate f* and no faster, as a GPU does: each batch costs its bytes / f* of
// compute, which starts when the batch arrives. Time lost waiting is not caught up.

#include <cstdint>

#include "base/clock.h"

namespace larder::bench {

class PacedConsumer {
public:
    // A rate of 0 means that batches take no time.
    explicit PacedConsumer(double bytes_per_second);
    // Returns when the consumer is ready for the next batch; `done_ns` of the work on this batch is already done.
    void consume(std::uint64_t bytes, std::int64_t done_ns);

private:
    double bytes_per_second_;
    SteadyClock clock_;
    std::int64_t overslept_ns_ = 0;
};

}  // namespace larder::bench
