#pragma once

// One attempt at running a job on this machine, as files in a directory of its own, which the engine and the runner
// (runner.h) share. They outlive the daemon, so that a later one knows what became of it:
//
//   run.json     what to run, and of which queue; written by the engine
//   lock         locked by the runner for as long as it lives (an open-file-description lock, fcntl(2))
//   started      who runs it: made once, by link(2), and only by one: whoever makes it has the attempt
//   exit.json    how it ended; written by the runner after everything it ran is gone
//   output.log   what the command and the runner said
//
// With `started` there, no lock and no exit.json the runner was killed: the attempt is lost.
//
// A queue has an identity, which is in the path and in each file: numbers of jobs mean something within one queue only.
// Files of another queue are as if they were not there.

#include <boost/json/object.hpp>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "scheduler/live/engine.h"

namespace larder::scheduler {

struct StartedBy {
    pid_t pid = 0;     // of the runner, which leads the session of all it runs; 0: it was stopped before it began
    std::string boot;  // the kernel's boot id
};

struct AttemptExit {
    std::optional<int> code;
    std::optional<int> signal;
    bool was_stopping = false;
    std::string message;  // why nothing could be run
};

class AttemptFiles {
public:
    // `queue`: the identity of the queue that the attempt is of; empty: of one that has none.
    explicit AttemptFiles(std::string directory, std::string queue = {})
        : directory_(std::move(directory)), queue_(std::move(queue)) {}

    const std::string& directory() const { return directory_; }
    std::string output() const { return directory_ + "/output.log"; }

    Result<void> write_run(const EngineJob& job) const;
    Result<EngineJob> read_run() const;
    // The queue that run.json names.
    std::string queue_of_run() const;

    // The runner's. already_exists: another runner has it.
    Result<FileDescriptor> lock() const;
    bool is_locked() const;
    // True: the attempt is the caller's now, to run or to have never begun.
    Result<bool> claim(const StartedBy& by) const;
    std::optional<StartedBy> started() const;

    Result<void> write_exit(const AttemptExit& how) const;
    std::optional<AttemptExit> exit() const;

private:
    std::optional<boost::json::object> read_own(const char* file) const;

    std::string directory_;
    std::string queue_;
};

// The highest number of a job that has files in `jobs_directory`, of whichever queue; 0: none has.
JobId highest_job_number(const std::string& jobs_directory);

std::string boot_id();

}  // namespace larder::scheduler
