#pragma once

// A control group (cgroups(7)) holds all processes of one attempt at running a job, those included that have left their
// session and their parent. So all of them can be killed, although their runner is dead. In version 2 the kernel kills
// a group (cgroup.kill, Linux 5.14). In version 1 the freezer stops all processes of the group, so that none can fork
// while they are killed one by one. A group is known by its directory alone.

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace larder::scheduler {

enum class GroupVersion : std::uint8_t { one = 1, two = 2 };

// Returns the directory in which this process may make groups: its own group, which the machine's administrator or
// systemd (Delegate=yes) gave it. Takes version 2 if both can be used. The error says why none can.
Result<std::string> find_group_parent();
Result<std::string> find_group_parent(GroupVersion version);

class ControlGroup {
public:
    // An empty directory stands for no group: nothing can enter it, and nothing is in it.
    explicit ControlGroup(std::string directory) : directory_(std::move(directory)) {}

    const std::string& directory() const { return directory_; }
    // Makes the group if it is missing, and moves the calling process into it.
    Result<void> enter() const;
    // Sends SIGKILL to all processes of the group and of the groups below it. Returns true once all of them are gone
    // and the group is removed. Call it again until then: a process may need time to end. Does not block.
    bool kill_all() const;

private:
    std::string directory_;
};

}  // namespace larder::scheduler
