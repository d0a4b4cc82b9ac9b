#pragma once

// An allocator within this process, for `larder up`: on a thread of its own, behind a Unix socket in the state
// directory, so that the daemon and every command reach it as they would reach a cluster's.

#include <memory>
#include <string>

#include "base/error.h"

namespace larder::cli {

class EmbeddedAllocator {
public:
    struct Options {
        std::string state_directory;  // of the daemon
        std::string socket;
        double remote_bytes_per_second = 0;  // of all jobs; 0: no limit is known
    };
    // It answers when this returns.
    static Result<std::unique_ptr<EmbeddedAllocator>> start(const Options& options);
    // Answers what is in hand, then ends.
    ~EmbeddedAllocator();
    EmbeddedAllocator(const EmbeddedAllocator&) = delete;
    EmbeddedAllocator& operator=(const EmbeddedAllocator&) = delete;

private:
    struct State;
    explicit EmbeddedAllocator(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace larder::cli
