#pragma once

// A consumer that takes bytes at its ideal rate f* and no faster, as a GPU does: each batch costs its bytes / f* of
// compute, which starts when the batch is there. Time lost waiting is not caught up.

#include <cstdint>

#include "base/clock.h"

namespace larder::bench {

class PacedConsumer {
public:
    // 0: takes no time.
    explicit PacedConsumer(double bytes_per_second);
    // Returns when the consumer is ready for the next batch; `done_ns` of its work on this one is done already.
    void consume(std::uint64_t bytes, std::int64_t done_ns);

private:
    double bytes_per_second_;
    SteadyClock clock_;
    std::int64_t overslept_ns_ = 0;
};

}  // namespace larder::bench
