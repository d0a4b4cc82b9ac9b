#include "tools/doctor/timed_transfers.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace larder::doctor {

TimedTransfers::TimedTransfers(cache::Device& device, std::size_t piece_bytes, std::size_t at_once)
    : device_(device),
      piece_bytes_(piece_bytes),
      began_ns_(at_once),
      memory_(cache::allocate_pages(piece_bytes * at_once)) {}

void TimedTransfers::start_next(std::size_t slot, const TransferLimits& limits, const Start& start) {
    if (!result_ || started_ >= limits.count_max) return;
    const std::int64_t now_ns = clock_.now_ns();
    if (started_ > 0 && now_ns >= deadline_ns_) return;
    began_ns_[slot] = now_ns;
    ++running_;
    if (start(slot)) {
        ++started_;
    } else {
        --running_;
    }
}

Result<void> TimedTransfers::run(const TransferLimits& limits, const Start& start) {
    const std::int64_t began_ns = clock_.now_ns();
    deadline_ns_ = began_ns + static_cast<std::int64_t>(limits.seconds * 1e9);
    const std::int64_t hangs_after_ns = deadline_ns_ + limits.hangs_ns;
    for (std::size_t slot = 0; slot < began_ns_.size(); ++slot) start_next(slot, limits, start);
    while (running_ > 0) {
        if (clock_.now_ns() >= hangs_after_ns) {
            // An abandoned transfer may still write to the memory.
            if (!device_.stop()) static_cast<void>(memory_.release());
            return fail(ErrorCode::timeout, "no answer for " + format_duration_ns(limits.hangs_ns));
        }
        device_.wait(hangs_after_ns);
        std::vector<std::size_t> ended;
        ended.swap(ended_);
        for (const std::size_t slot : ended) start_next(slot, limits, start);
    }
    seconds_ = seconds_since(clock_, began_ns);
    return result_;
}

void TimedTransfers::ended(std::size_t slot, std::uint64_t bytes) {
    --running_;
    bytes_ += bytes;
    latencies_ns_.push_back(clock_.now_ns() - began_ns_[slot]);
    ended_.push_back(slot);
}

void TimedTransfers::failed(Error error) {
    --running_;
    if (result_) result_ = std::unexpected(std::move(error));
}

double TimedTransfers::median_seconds() {
    if (latencies_ns_.empty()) return 0;
    const auto middle = latencies_ns_.begin() + static_cast<std::ptrdiff_t>(latencies_ns_.size() / 2);
    std::ranges::nth_element(latencies_ns_, middle);
    return static_cast<double>(*middle) / 1e9;
}

}  // namespace larder::doctor
