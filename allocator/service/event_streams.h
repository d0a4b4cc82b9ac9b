#pragma once

// Readers of events that stay connected, as server-sent events: each is pushed what is in the log after the last number
// it was given, and, if it asked for that, again and again how the cluster is (event "status"), which has no number. On
// the server's thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "allocator/service/events.h"
#include "base/server/http_stream.h"

namespace larder::allocator {

class EventStreams {
public:
    // JSON without line breaks.
    using Status = std::function<std::string()>;

    // For a reader that has seen the events up to this number. Every so often it is told the status, at once for the
    // first time; 0: never.
    std::shared_ptr<HttpStream> open(std::uint64_t after, std::int64_t status_every_ns, std::int64_t now_ns);
    // What is new to each; a comment where there was nothing for long, so that broken connections are noticed. `status`
    // is asked for once, when it is due to somebody.
    void push(const EventLog& events, const Status& status, std::int64_t now_ns);
    void end();

private:
    struct Reader {
        std::shared_ptr<HttpStream> stream;
        std::uint64_t after = 0;
        std::int64_t pushed_ns = 0;
        std::int64_t status_every_ns = 0;
        std::int64_t next_status_ns = 0;
    };

    std::vector<Reader> readers_;
};

}  // namespace larder::allocator
