#pragma once

// Why the latest reads of a remote failed, in full, for readers who were only told that they did. The data plane notes,
// the control thread asks; any thread may do either.

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
    // The latest of an object; empty if none is known.
    std::string latest(std::string_view path) const;

private:
    struct Problem {
        std::string path;
        std::string message;
    };

    mutable std::mutex mutex_;
    std::deque<Problem> problems_;  // one for each object, the latest last
};

}  // namespace larder::cache
