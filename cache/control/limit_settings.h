#pragma once

// The limits of jobs that are set through the API: applied at once, and kept in a file for the next start. Control
// thread only.

#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "cache/control/job_limits.h"
#include "cache/control/work_thread.h"

namespace boost::asio {
class io_context;
}

namespace larder::cache {

class LimitSettings {
public:
    // The arguments must outlive the LimitSettings.
    LimitSettings(const std::string& state_directory, const Clock& clock, JobLimits& job_limits, WorkThread& files,
                  boost::asio::io_context& control)
        : path_(state_directory + "/limits.json"),
          clock_(clock),
          job_limits_(job_limits),
          files_(files),
          control_(control) {}

    // Takes up the limits of an earlier run. Blocks on the disk.
    Result<void> load();
    // nullopt: the config's limit applies again. Calls `done` when the limit is saved.
    void set(const std::string& job, std::optional<JobLimit> limit, std::function<void(Result<void>)> done);

private:
    const std::string path_;
    const Clock& clock_;
    JobLimits& job_limits_;
    WorkThread& files_;
    boost::asio::io_context& control_;
};

}  // namespace larder::cache
