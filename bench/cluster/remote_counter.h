#pragma once

// What the jobs of several node daemons have taken from the remote, in all: a count that never goes back, whether jobs
// end, daemons are killed and started anew, or one does not answer just now. Any thread.

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"

namespace larder::bench {

class RemoteCounter {
public:
    explicit RemoteCounter(std::vector<std::string> admin_sockets) : sockets_(std::move(admin_sockets)) {}

    // Asks every daemon. What one that does not answer has taken since is not counted yet.
    Result<std::uint64_t> bytes();
    // What all jobs seen since `forget_bursts` may have taken at once beyond their rates; twice, where a daemon was
    // started anew and with it a full bucket.
    std::uint64_t burst_bytes();
    void forget_bursts();

private:
    struct Job {
        std::uint64_t before_bytes = 0;  // by earlier daemons
        std::uint64_t last_bytes = 0;
        std::uint64_t burst_bytes_before = 0;
        std::uint64_t burst_bytes = 0;
    };

    void look(const std::string& socket);

    std::vector<std::string> sockets_;
    std::mutex mutex_;
    std::map<std::string, Job> jobs_;  // by daemon, job and dataset
};

}  // namespace larder::bench
