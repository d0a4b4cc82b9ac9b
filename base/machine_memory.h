#pragma once

// The memory that this process can have: the machine's memory, or the lowest limit set on the control groups it runs in
// (a container, a systemd unit, a batch job).

#include <cstdint>
#include <optional>
#include <string>

namespace larder {

struct MachineMemory {
    std::uint64_t bytes = 0;
    bool limited_by_cgroup = false;
};

MachineMemory machine_memory();
// Describes the limit for messages: "this machine has 23.45 GiB", "the control group of this process may have
// 8.00 GiB".
std::string describe(const MachineMemory& memory);

// Returns the lowest memory limit of the control groups named in `groups` (the text of /proc/self/cgroup) and of their
// parents, as mounted at `root` (/sys/fs/cgroup). Returns nothing if no limit is set or readable.
std::optional<std::uint64_t> cgroup_memory_limit(const std::string& groups, const std::string& root);

}  // namespace larder
