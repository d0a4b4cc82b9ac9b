#pragma once

// Finds processes in /proc, to kill those that a runner left behind.

#include <sys/types.h>

#include <functional>

namespace larder::scheduler {

// Kills all processes of the session that `leader` led, if `leader` is dead. The kernel gives no new process the number
// of an existing session. So if another process has the leader's number, no process of the session is left.
void kill_session_of_dead(pid_t leader);

// Kills all children of this process, including those it inherited as a subreaper, and waits for them.
void kill_all_children();

// Sends SIGTERM to a process if `is_expected` returns true. A pidfd makes sure that no later process of the same
// number gets the signal.
void terminate_if(pid_t pid, const std::function<bool()>& is_expected);

}  // namespace larder::scheduler
