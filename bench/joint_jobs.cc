#include "bench/joint_jobs.h"

#include "bench/pace.h"

namespace larder::bench {

JointJobRun::JointJobRun(Open open, double ideal_bytes_per_second)
    : thread_([this, open = std::move(open), ideal_bytes_per_second] { run(open, ideal_bytes_per_second); }) {}

JointJobRun::~JointJobRun() {
    stop();
}

void JointJobRun::stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
}

Result<void> JointJobRun::state() const {
    const std::lock_guard lock(mutex_);
    return state_;
}

void JointJobRun::run(const Open& open, double ideal_bytes_per_second) {
    const auto fail_with = [this](const Error& error) {
        const std::lock_guard lock(mutex_);
        state_ = std::unexpected(error);
    };
    auto feeder = open();
    if (!feeder) return fail_with(feeder.error());
    PacedConsumer consumer(ideal_bytes_per_second);
    while (!stopping_) {
        const auto batch = (*feeder)->next();
        if (!batch) return fail_with(batch.error());
        if (!*batch) {
            epochs_.fetch_add(1, std::memory_order_relaxed);
            continue;
        }
        consumer.consume((*batch)->bytes, (*batch)->reading_ns);
        bytes_.fetch_add((*batch)->bytes, std::memory_order_relaxed);
    }
}

}  // namespace larder::bench
