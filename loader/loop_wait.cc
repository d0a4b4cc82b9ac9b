#include "loader/loop_wait.h"

#include <algorithm>
#include <utility>

namespace larder::detail {

void LoopWait::begin(std::int64_t now_ns) {
    if (own_.since_ns == 0) own_.since_ns = now_ns;
}

LoopWait::Taken LoopWait::end(std::int64_t now_ns) {
    const std::int64_t since_ns = std::exchange(own_.since_ns, 0);
    if (since_ns == 0) return {.begin_ns = now_ns, .end_ns = now_ns};
    own_.waited_ns += now_ns - since_ns;
    return {.begin_ns = since_ns, .end_ns = now_ns};
}

void LoopWait::follow(std::shared_ptr<const TrainingLoopWait> loop, std::shared_ptr<const protocol::TakeLog> takes) {
    loop_runs_elsewhere_ = true;
    loop_takes_ = std::move(takes);
    if (loop == loop_) return;
    loop_ = std::move(loop);
    begin_session();
}

void LoopWait::begin_session() {
    waited_before_ns_ = waits().waited_ns;
    first_report_ns_ = 0;
    busy_ns_ = 0;
    next_take_ = 0;
}

void LoopWait::copy_takes(protocol::TakeLog& into) {
    if (loop_takes_) next_take_ = into.copy_from(*loop_takes_, next_take_);
}

std::int64_t LoopWait::stall_ns() const {
    return std::max<std::int64_t>(0, waits().waited_ns - waited_before_ns_);
}

LoopWait::Report LoopWait::report(std::int64_t now_ns) {
    if (loop_runs_elsewhere_ && !loop_) return {};
    const Waits now = waits();
    const std::int64_t open_ns = now.since_ns == 0 ? 0 : std::max<std::int64_t>(0, now_ns - now.since_ns);
    if (first_report_ns_ == 0) {
        first_report_ns_ = now_ns;
        waited_at_first_report_ns_ = now.waited_ns + open_ns;
    }
    const std::int64_t waited_ns = now.waited_ns + open_ns - waited_at_first_report_ns_;
    busy_ns_ = std::max(busy_ns_, now_ns - first_report_ns_ - waited_ns);
    return {.stall_ns = std::max<std::int64_t>(0, now.waited_ns - waited_before_ns_),
            .waiting_since_ns = now.since_ns,
            .busy_ns = busy_ns_,
            .training_loops = 1,
            .loop_is_elsewhere = loop_runs_elsewhere_};
}

LoopWait::Waits LoopWait::waits() const {
    if (!loop_) return own_;
    // The loop writes these values in the other order. So a wait that ends in between counts twice for a moment, but is
    // never missed. A missed wait would raise `busy_ns` for good, because `busy_ns` never falls within a session.
    const std::int64_t since_ns = loop_->waiting_since_ns.load(std::memory_order_acquire);
    return {.waited_ns = loop_->waited_ns.load(std::memory_order_acquire), .since_ns = since_ns};
}

}  // namespace larder::detail
