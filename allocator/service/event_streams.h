#pragma once

// Readers of events that stay connected, as server-sent events: each is pushed what is in the log after the last number
// it was given. On the server's thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/service/events.h"
#include "base/server/http_stream.h"

namespace larder::allocator {

class EventStreams {
public:
    // For a reader that has seen the events up to this number.
    std::shared_ptr<HttpStream> open(std::uint64_t after, std::int64_t now_ns);
    // What is new to each; a comment where there was nothing for long, so that broken connections are noticed.
    void push(const EventLog& events, std::int64_t now_ns);
    void end();

private:
    struct Reader {
        std::shared_ptr<HttpStream> stream;
        std::uint64_t after = 0;
        std::int64_t pushed_ns = 0;
    };

    std::vector<Reader> readers_;
};

}  // namespace larder::allocator
