#pragma once

// Keeps the full messages of the latest failed reads of a remote, because clients get only a status. The data plane
// notes messages, the control thread asks for them; both may be done on any thread.

#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>

namespace larder::cache {

class RemoteProblems {
public:
    static constexpr std::size_t kObjectsMax = 256;

    void note(std::string_view path, std::string_view message);
    // Returns the latest message for an object; empty: none is known.
    std::string latest(std::string_view path) const;

private:
    struct Problem {
        std::string path;
        std::string message;
    };

    mutable std::mutex mutex_;
    std::deque<Problem> problems_;  // at most one for each object, the latest last
};

}  // namespace larder::cache
