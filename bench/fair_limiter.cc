#include "bench/fair_limiter.h"

#include <algorithm>
#include <chrono>

namespace larder::bench {

FairOrder::Turn FairOrder::add(std::size_t reader, std::uint64_t bytes) {
    const Turn turn(std::max(served_, ends_[reader]), requests_++);
    ends_[reader] = turn.first + bytes;
    waiting_.insert(turn);
    return turn;
}

void FairOrder::serve(const Turn& turn) {
    served_ = turn.first;
    waiting_.erase(turn);
}

FairLimiter::FairLimiter(double bytes_per_second, std::uint64_t burst_bytes, std::size_t readers) : order_(readers) {
    bucket_.set_limit(bytes_per_second, burst_bytes, clock_.now_ns());
}

void FairLimiter::take(std::size_t reader, std::uint64_t bytes) {
    std::unique_lock lock(mutex_);
    const FairOrder::Turn turn = order_.add(reader, bytes);
    for (;;) {
        if (!order_.is_next(turn)) {
            changed_.wait(lock);
            continue;
        }
        if (bucket_.try_take(bytes, clock_.now_ns())) break;
        const std::int64_t wait_ns = std::max<std::int64_t>(bucket_.ready_at_ns(bytes) - clock_.now_ns(), 1000);
        // A request that comes meanwhile may be served first.
        changed_.wait_for(lock, std::chrono::nanoseconds(wait_ns));
    }
    order_.serve(turn);
    changed_.notify_all();
}

}  // namespace larder::bench
