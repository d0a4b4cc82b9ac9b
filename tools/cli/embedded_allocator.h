#pragma once

// An allocator within this process, for `larder up`. It runs on its own thread, behind a Unix socket in the state
// directory, so that the daemon and every command reach it like a cluster's allocator.

#include <memory>
#include <string>

#include "base/error.h"

namespace larder::cli {

class EmbeddedAllocator {
public:
    struct Options {
        std::string state_directory;  // the daemon's
        std::string socket;
        double remote_bytes_per_second = 0;  // for all jobs; 0: no known limit
    };
    // Starts the allocator; it answers once this returns.
    static Result<std::unique_ptr<EmbeddedAllocator>> start(const Options& options);
    // Answers pending requests, then ends.
    ~EmbeddedAllocator();
    EmbeddedAllocator(const EmbeddedAllocator&) = delete;
    EmbeddedAllocator& operator=(const EmbeddedAllocator&) = delete;

private:
    struct State;
    explicit EmbeddedAllocator(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace larder::cli
