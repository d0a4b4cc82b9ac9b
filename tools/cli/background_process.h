#pragma once

// Runs a command of this program in the background, such as `larder up -d`, which `larder down` ends. A lock in the
// state directory (up.lock) names the process of `larder up` and is freed with that process.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace larder::cli {

// Takes the lock that `larder up` holds as long as it runs. already_exists: another process runs on this state.
Result<FileDescriptor> lock_up(const std::string& state_directory);

struct BackgroundProcess {
    std::string command;                 // as users know it, for errors
    std::vector<std::string> arguments;  // for this program, from the first on
    std::string log;                     // the file to which stdout and stderr are appended
};

// Runs this program in its own session. Returns its process id once it serves, or an error with its output if it ends
// before.
Result<pid_t> run_in_background(const BackgroundProcess& background);

// Returns the command a user types to end the `larder up` of this state.
std::string down_command(const std::string& state_directory);

// Returns the arguments of this process, from the first on.
std::vector<std::string> own_arguments();

// Asks the `larder up` of this state to end, and waits. Returns its process id, or nothing if none runs. timeout: it
// has not ended within `timeout_s`.
Result<std::optional<pid_t>> stop_up(const std::string& state_directory, unsigned timeout_s);

}  // namespace larder::cli
