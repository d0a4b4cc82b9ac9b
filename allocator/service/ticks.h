#pragma once

// Ticks an AllocatorApi on its thread until stop(), which also answers the waiting requests.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "allocator/service/allocator_api.h"

namespace larder::allocator {

class Ticks {
public:
    // `context` and `api` must outlive the Ticks. The first tick runs on the context.
    Ticks(boost::asio::io_context& context, AllocatorApi& api);
    // Stops the ticks. Call it on the context's thread before the HTTP server stops, so that waiting clients get an
    // answer.
    void stop();

private:
    void wait();

    AllocatorApi& api_;
    boost::asio::steady_timer timer_;
    bool stopped_ = false;
};

}  // namespace larder::allocator
