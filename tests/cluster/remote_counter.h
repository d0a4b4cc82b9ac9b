#pragma once

// Counts the remote bytes of all jobs on several node daemons. The count never goes back, even if jobs end, or daemons
// are killed and restarted. Any thread.

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"

namespace larder::test {

class RemoteCounter {
public:
    explicit RemoteCounter(std::vector<std::string> admin_sockets, std::int64_t answer_timeout_ms = 30'000)
        : sockets_(std::move(admin_sockets)), answer_timeout_ms_(answer_timeout_ms) {}

    // Asks every daemon. A daemon that is gone keeps its last count. An error if a daemon does not answer in time.
    Result<std::uint64_t> bytes();
    // Returns the bytes that all jobs seen since `forget_bursts` may have taken in bursts beyond their rates. A job
    // counts twice if its daemon was restarted, because the new bucket is full.
    std::uint64_t burst_bytes();
    void forget_bursts();

private:
    struct Job {
        std::uint64_t bytes_before = 0;  // by earlier processes of the daemon
        std::uint64_t last_bytes = 0;    // by the present process
        std::uint64_t burst_bytes_before = 0;
        std::uint64_t burst_bytes = 0;
    };

    Result<void> update_counts(const std::string& socket);

    std::vector<std::string> sockets_;
    std::int64_t answer_timeout_ms_;
    std::mutex mutex_;
    std::map<std::string, Job> jobs_;  // by daemon, job and dataset
};

}  // namespace larder::test
