#include "allocator/service/ticks.h"

#include <chrono>

namespace larder::allocator {
namespace {

constexpr std::chrono::milliseconds kTick{100};

}  // namespace

Ticks::Ticks(boost::asio::io_context& context, AllocatorApi& api) : api_(api), timer_(context) {
    wait();
}

void Ticks::stop() {
    stopped_ = true;
    timer_.cancel();
    api_.end_waits();
}

void Ticks::wait() {
    timer_.expires_after(kTick);
    timer_.async_wait([this](const boost::system::error_code& error) {
        if (error || stopped_) return;
        api_.tick();
        wait();
    });
}

}  // namespace larder::allocator
