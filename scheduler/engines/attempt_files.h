#pragma once

// One attempt at running a job on this machine, as files in a directory of its own, which the engine and the runner
// (runner.h) share. They outlive the daemon, so that a later one knows what became of it:
//
//   run.json     what to run; written by the engine
//   lock         locked by the runner for as long as it lives (an open-file-description lock, fcntl(2))
//   started      who runs it: made once, by link(2), and only by one: whoever makes it has the attempt
//   exit.json    how it ended; written by the runner after everything it ran is gone
//   output.log   what the command and the runner said
//
// With `started` there, no lock and no exit.json the runner was killed: the attempt is lost.

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
    explicit AttemptFiles(std::string directory) : directory_(std::move(directory)) {}

    const std::string& directory() const { return directory_; }
    std::string output() const { return directory_ + "/output.log"; }

    Result<void> write_run(const EngineJob& job) const;
    Result<EngineJob> read_run() const;

    // The runner's. already_exists: another runner has it.
    Result<FileDescriptor> lock() const;
    bool is_locked() const;
    // True: the attempt is the caller's now, to run or to have never begun.
    Result<bool> claim(const StartedBy& by) const;
    std::optional<StartedBy> started() const;

    Result<void> write_exit(const AttemptExit& how) const;
    std::optional<AttemptExit> exit() const;

private:
    std::string directory_;
};

std::string boot_id();

}  // namespace larder::scheduler
