#pragma once

// Finds processes in /proc, to kill those that a runner left behind.

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>

namespace larder::scheduler {

// Kills all processes of the session that `leader` led, if `leader` is dead. Returns true once none is left; call it
// again until then. The kernel gives no new process the number of an existing session. So if another process has the
// leader's number, no process of the session is left.
bool kill_session_of_dead(pid_t leader);

// Kills all children of this process, including those it inherited as a subreaper, and waits for them.
void kill_all_children();

// True if `ancestor` is the parent of `process`, or the parent of its parent, and so on.
bool descends_from(pid_t process, pid_t ancestor);

// True if the process was started with `argument` as its first argument.
bool has_first_argument(pid_t pid, std::string_view argument);

// Returns the process's number and name, for example "process 1 (systemd)". `pid` 0 is a process of another namespace.
std::string describe_process(pid_t pid);

// Sends SIGTERM to a process if `is_expected` returns true. A pidfd makes sure that no later process of the same
// number gets the signal.
void terminate_if(pid_t pid, const std::function<bool()>& is_expected);

}  // namespace larder::scheduler
