#pragma once

// A time in which nothing that was asked of one endpoint had an answer.

#include <cstdint>
#include <string>

namespace larder::cache {

struct HttpOutage {
    std::string endpoint;        // "https://host:port"
    std::int64_t began_ns = 0;   // the first failure after the last answer
    std::int64_t ended_ns = 0;   // 0: it lasts
    bool answers = false;        // how it ended: with an answer, or because nobody asks any more
    std::uint64_t failures = 0;  // of tries
    std::string why;             // the last failure
};

}  // namespace larder::cache
