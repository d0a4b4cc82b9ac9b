#pragma once

// The files of one attempt at running a job on this machine, in a directory of its own. The engine and the runner
// (runner.h) share them. They outlive the daemon, so that a later daemon learns how the attempt ended:
//
//   run.json     what to run, in which control group, and the queue's identity; written by the engine
//   lock         locked by the runner while it lives (an open-file-description lock, fcntl(2))
//   started      who runs the attempt: link(2) lets only one process create the file, which then owns the attempt
//   stop.json    who told the runner to stop the command, while it ran; written by the runner
//   exit.json    how the attempt ended; written by the runner after all processes it started are gone
//   output.log   the output of the command and the runner
//
// If `started` is there without a lock and an exit.json, the runner was killed and the attempt is lost.
//
// Job numbers have a meaning only within one queue. So the queue's identity is in the path and in each file, and files
// of another queue are ignored.

#include <boost/json/object.hpp>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "scheduler/live/engine.h"

namespace larder::scheduler {

struct StartedBy {
    pid_t pid = 0;      // of the runner, which leads the session of all it runs; 0: stopped before it began
    std::string boot;   // the kernel's boot id
    std::string group;  // directory of the control group of all it runs; empty: none
};

struct AttemptExit {
    std::optional<int> code;
    std::optional<int> signal;
    bool was_stopping = false;    // as in EngineEvent
    bool stop_came_late = false;  // as in EngineEvent
    std::string stopped_by;       // as in EngineEvent
    std::string message;          // why nothing could be run
};

class AttemptFiles {
public:
    // `queue`: the identity of the attempt's queue; empty: the queue has none.
    explicit AttemptFiles(std::string directory, std::string queue = {})
        : directory_(std::move(directory)), queue_(std::move(queue)) {}

    const std::string& directory() const { return directory_; }
    std::string output() const { return directory_ + "/output.log"; }

    // The attempt's control group is made in the directory `group_parent`; empty: it has none.
    Result<void> write_run(const EngineJob& job, const std::string& group_parent) const;
    Result<EngineJob> read_run() const;
    // Return the queue and the directory of the control group that run.json names; empty: none.
    std::string queue_of_run() const;
    std::string group_of_run() const;

    // Takes the runner's lock. already_exists: another runner holds it.
    Result<FileDescriptor> lock() const;
    bool is_locked() const;
    // Returns true if the caller now owns the attempt, to run it or to record that it never began.
    Result<bool> claim(const StartedBy& starter) const;
    std::optional<StartedBy> started() const;

    Result<void> write_stop(const std::string& by) const;
    std::optional<std::string> stopped_by() const;
    Result<void> write_exit(const AttemptExit& outcome) const;
    std::optional<AttemptExit> exit() const;
    // True if a runner runs the attempt, or the attempt was prepared and nobody owns it, so that a runner may begin it.
    bool may_run() const;

private:
    std::optional<boost::json::object> read_own(const char* file) const;

    std::string directory_;
    std::string queue_;
};

// Returns the attempts with directories in `jobs_directory`, of any queue. Those of versions without queue identities
// have an empty queue.
std::vector<AttemptName> attempts_with_files(const std::string& jobs_directory);

// Returns the highest number of a job with files in `jobs_directory`, of any queue; 0: none.
JobId highest_job_number(const std::string& jobs_directory);

std::string boot_id();

}  // namespace larder::scheduler
