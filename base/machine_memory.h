#pragma once

// How much memory this process can have: the machine's, or the least limit of the control groups it runs in (a
// container, a systemd unit, a batch job), where one is set.

#include <cstdint>
#include <optional>
#include <string>

namespace larder {

struct MachineMemory {
    std::uint64_t bytes = 0;
    bool limited_by_cgroup = false;
};

MachineMemory machine_memory();
// "this machine has 23.45 GiB", "the control group this runs in may have 8.00 GiB": for messages.
std::string describe(const MachineMemory& memory);

// The least memory limit of the control groups that `groups` (the text of /proc/self/cgroup) names and of those above
// them, as mounted at `root` (/sys/fs/cgroup). Nothing if none is set or can be read.
std::optional<std::uint64_t> cgroup_memory_limit(const std::string& groups, const std::string& root);

}  // namespace larder
