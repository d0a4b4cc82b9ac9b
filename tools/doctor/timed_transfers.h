#pragma once

// Keeps several transfers of a disk or a remote running for a time, each with memory of its own, and measures them. The
// caller starts each transfer and says when it has ended; both happen on the device's thread.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "cache/device.h"
#include "cache/shard/page_memory.h"

namespace larder::doctor {

struct TransferLimits {
    double seconds = 0;  // none starts later, but one always does
    std::size_t count_max = std::numeric_limits<std::size_t>::max();
    std::int64_t hangs_ns = 0;  // fails if transfers run for so long after `seconds`
};

class TimedTransfers {
public:
    // Starts a transfer through a slot. False: there is nothing more to transfer.
    using Start = std::function<bool(std::size_t slot)>;

    TimedTransfers(cache::Device& device, std::size_t piece_bytes, std::size_t at_once);

    std::span<std::byte> memory() { return {memory_.get(), piece_bytes_ * began_ns_.size()}; }
    std::span<std::byte> piece(std::size_t slot) { return memory().subspan(slot * piece_bytes_, piece_bytes_); }

    // Returns when all transfers have ended, with the first error. For one run.
    Result<void> run(const TransferLimits& limits, const Start& start);
    void ended(std::size_t slot, std::uint64_t bytes);
    void failed(Error error);

    std::uint64_t bytes() const { return bytes_; }
    double bytes_per_second() const { return seconds_ > 0 ? static_cast<double>(bytes_) / seconds_ : 0; }
    double median_seconds();

private:
    void start_next(std::size_t slot, const TransferLimits& limits, const Start& start);

    cache::Device& device_;
    const std::size_t piece_bytes_;
    const SteadyClock clock_;
    std::vector<std::int64_t> began_ns_;  // by slot
    cache::PageMemory memory_;
    std::vector<std::size_t> ended_;
    std::vector<std::int64_t> latencies_ns_;
    Result<void> result_;
    std::int64_t deadline_ns_ = 0;
    std::uint64_t bytes_ = 0;
    std::size_t started_ = 0;
    std::size_t running_ = 0;
    double seconds_ = 0;
};

}  // namespace larder::doctor
