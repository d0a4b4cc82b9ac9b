#include "tools/cli/interrupt.h"

#include <ctime>

namespace larder::cli {

InterruptWatch::InterruptWatch() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
}

InterruptWatch::~InterruptWatch() {
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool InterruptWatch::pressed_within(std::int64_t wait_ms) const {
    const timespec wait{wait_ms / 1000, wait_ms % 1000 * 1'000'000};
    return sigtimedwait(&signals_, nullptr, &wait) > 0;
}

}  // namespace larder::cli
