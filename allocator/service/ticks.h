#pragma once

// What gives an Api its sense of time: ticks on its thread until stop(), which also answers the requests that wait.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "allocator/service/api.h"

namespace larder::allocator {

class Ticks {
public:
    // Both must outlive it; the first tick is the context's to run.
    Ticks(boost::asio::io_context& context, Api& api);
    // Before the HTTP server stops, so that who waits has an answer. On the context's thread.
    void stop();

private:
    void wait();

    Api& api_;
    boost::asio::steady_timer timer_;
    bool stopped_ = false;
};

}  // namespace larder::allocator
