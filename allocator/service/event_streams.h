#pragma once

// Clients that stay connected to read events, as server-sent events. Each gets the events after the last number it was
// given and, if it asked for that, the cluster's status at intervals (event "status", which has no number). Runs on the
// server's thread.

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

    // Opens a stream for a reader that has seen the events up to `after`. The reader gets a status at once and then
    // every `status_every_ns`; 0: never.
    std::shared_ptr<HttpStream> open(std::uint64_t after, std::int64_t status_every_ns, std::int64_t now_ns);
    // Pushes new events to each reader, and a comment after a long silence, so that broken connections are noticed.
    // Calls `status` at most once, when a reader is due a status.
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
