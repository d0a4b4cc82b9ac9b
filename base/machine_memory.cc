#include "base/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

#include "base/file.h"
#include "base/units.h"

namespace larder {
namespace {

// Returns the limit in a cgroup file; nullopt for "max". Version 1 has a number for no limit, which is larger than any
// machine's memory.
std::optional<std::uint64_t> limit_in(const std::string& path) {
    const auto text = read_file(path);
    if (!text) return std::nullopt;
    std::uint64_t bytes = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), bytes);
    return error == std::errc{} ? std::optional(bytes) : std::nullopt;
}

void lower_to(std::optional<std::uint64_t>& least, const std::optional<std::uint64_t>& limit) {
    if (limit && *limit > 0) least = least ? std::min(*least, *limit) : *limit;
}

}  // namespace

std::optional<std::uint64_t> cgroup_memory_limit(const std::string& groups, const std::string& root) {
    std::optional<std::uint64_t> least;
    std::istringstream lines(groups);
    // A line is "0::/path" in version 2 and "4:memory:/path" in version 1.
    for (std::string line; std::getline(lines, line);) {
        const std::size_t first = line.find(':');
        const std::size_t second = line.find(':', first == std::string::npos ? first : first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool version_1 = ("," + controllers + ",").find(",memory,") != std::string::npos;
        if (!version_1 && !controllers.empty()) continue;
        const std::string mount = root + (version_1 ? "/memory" : "");
        const char* name = version_1 ? "/memory.limit_in_bytes" : "/memory.max";
        std::string group = line.substr(second + 1);
        // A container sees its own group as the mount's root, whatever the path says.
        for (;; group.resize(group.rfind('/'))) {
            while (group.ends_with('/')) group.pop_back();
            lower_to(least, limit_in(mount + group + name));
            if (group.empty()) break;
        }
    }
    return least;
}

MachineMemory machine_memory() {
    const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    MachineMemory memory{.bytes = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * page_bytes};
    const auto groups = read_file("/proc/self/cgroup");
    const auto limit = groups ? cgroup_memory_limit(*groups, "/sys/fs/cgroup") : std::nullopt;
    if (limit && *limit < memory.bytes) memory = {.bytes = *limit, .limited_by_cgroup = true};
    return memory;
}

std::string describe(const MachineMemory& memory) {
    const std::string size = format_bytes(memory.bytes, UnitFamily::binary);
    return memory.limited_by_cgroup ? "the control group of this process may have " + size : "this machine has " + size;
}

}  // namespace larder
