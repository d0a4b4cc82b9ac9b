#pragma once

// `larder up` in the background: started by `larder up -d`, ended by `larder down`. Who has a state directory is told
// by a lock in it (up.lock), which names the process and goes with it.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace larder::cli {

// Held by `larder up` for as long as it runs. already_exists: another one runs on this state.
Result<FileDescriptor> lock_up(const std::string& state_directory);

struct Background {
    std::vector<std::string> arguments;  // of this program, from the first on
    std::string log;                     // what it writes to stdout and stderr is put at its end
};

// Runs this program in a session of its own. Gives its process id once it serves; an error where it ends before, with
// what it said.
Result<pid_t> run_in_background(const Background& background);

// What a user types to end it.
std::string down_command(const std::string& state_directory);

// The arguments of this process, from the first on.
std::vector<std::string> own_arguments();

// Asks the `larder up` of this state to end, and waits. Gives its process id; nothing: none runs. timeout: it has not
// ended within `timeout_s`.
Result<std::optional<pid_t>> end_up(const std::string& state_directory, unsigned timeout_s);

}  // namespace larder::cli
