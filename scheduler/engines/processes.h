#pragma once

// Processes by what the kernel says of them in /proc: those a runner left behind.

#include <sys/types.h>

#include <functional>

namespace larder::scheduler {

// Kills all processes of the session `leader` led, when it is dead. A number that is a session's is given to no new
// process, so where another process has the leader's number, nothing of the session is left.
void kill_session_of_dead(pid_t leader);

// Kills all children of this process, those it inherited as their reaper too, and waits for them.
void kill_all_children();

// SIGTERM to a process, if `is_it` says so while it cannot be replaced by another of its number.
void terminate_if(pid_t pid, const std::function<bool()>& is_it);

}  // namespace larder::scheduler
