#include "scheduler/engines/control_group.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <ranges>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/file.h"

namespace larder::scheduler {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kMode = 0755;

// The hierarchy of groups that a version uses, as /proc/self/mountinfo and /proc/self/cgroup name it.
struct Hierarchy {
    std::string_view version;
    std::string_view file_system;
    std::string_view controller;  // empty in version 2
    std::string_view kill_file;   // with which groups of this version are killed
};
constexpr std::array kHierarchies{
    Hierarchy{"version 1", "cgroup", "freezer", "freezer.state"},
    Hierarchy{"version 2", "cgroup2", "", "cgroup.kill"},
};

struct Mount {
    std::string root;  // the group that is seen as the mounted directory
    std::string directory;
};

bool has_word(std::string_view list, std::string_view word) {
    for (const auto part : std::views::split(list, ',')) {
        if (std::string_view(part.begin(), part.end()) == word) return true;
    }
    return false;
}

// A line: "36 35 98:0 ROOT DIRECTORY OPTIONS [TAG...] - FILE_SYSTEM SOURCE SUPER_OPTIONS".
std::optional<Mount> mount_of(const Hierarchy& hierarchy, const std::string& mounts) {
    std::istringstream lines(mounts);
    for (std::string line; std::getline(lines, line);) {
        const std::size_t dash = line.find(" - ");
        if (dash == std::string::npos) continue;
        std::istringstream head(line);
        std::istringstream tail(line.substr(dash + 3));
        std::string skipped;
        Mount mount;
        head >> skipped >> skipped >> skipped >> mount.root >> mount.directory;
        std::string file_system;
        std::string options;
        tail >> file_system >> skipped >> options;
        if (file_system != hierarchy.file_system) continue;
        if (hierarchy.controller.empty() || has_word(options, hierarchy.controller)) return mount;
    }
    return std::nullopt;
}

// A line: "0::/path" in version 2, "6:freezer:/path" in version 1.
std::optional<std::string> own_group(const Hierarchy& hierarchy, const std::string& groups) {
    std::istringstream lines(groups);
    for (std::string line; std::getline(lines, line);) {
        const std::size_t first = line.find(':');
        const std::size_t second = line.find(':', first == std::string::npos ? first : first + 1);
        if (second == std::string::npos) continue;
        const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
        const bool is_it =
            hierarchy.controller.empty() ? controllers.empty() : has_word(controllers, hierarchy.controller);
        if (is_it) return line.substr(second + 1);
    }
    return std::nullopt;
}

Result<void> write_to(const std::string& path, std::string_view text) {
    const auto file = open_file(path, O_WRONLY);
    if (!file) return std::unexpected(file.error());
    if (::write(file->get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
        return fail_errno(errno, "write " + path);
    }
    return {};
}

// Makes a group and removes it again, to see whether groups can be made, entered and killed.
Result<void> try_out(const Hierarchy& hierarchy, const std::string& parent) {
    const std::string probe = parent + "/larder-probe-" + std::to_string(::getpid());
    if (::mkdir(probe.c_str(), kMode) != 0) return fail_errno(errno, "make a control group in " + parent);
    Result<void> outcome;
    for (const std::string& file :
         {probe + "/cgroup.procs", parent + "/cgroup.procs", probe + "/" += hierarchy.kill_file}) {
        if (outcome && ::access(file.c_str(), W_OK) != 0) outcome = fail_errno(errno, "write " + file);
    }
    ::rmdir(probe.c_str());
    return outcome;
}

// Returns the directories of the group and of all groups below it, the deepest last.
std::vector<std::string> groups_in(const std::string& directory) {
    std::vector<std::string> groups{directory};
    std::error_code error;
    for (fs::recursive_directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
        std::error_code ignored;
        if (at->is_directory(ignored)) groups.push_back(at->path());
    }
    std::ranges::sort(groups, {}, &std::string::size);
    return groups;
}

void kill_processes_of(const std::string& directory) {
    for (const std::string& group : groups_in(directory)) {
        std::istringstream processes(read_file(group + "/cgroup.procs").value_or(""));
        // Number 0 is a process of another PID namespace.
        for (pid_t pid = 0; processes >> pid;) {
            if (pid > 0) ::kill(pid, SIGKILL);
        }
    }
}

}  // namespace

Result<std::string> find_group_parent(GroupVersion version) {
    const Hierarchy& hierarchy = kHierarchies.at(version == GroupVersion::one ? 0 : 1);
    const std::string what = "control groups of " + std::string(hierarchy.version);
    const auto mounts = read_file("/proc/self/mountinfo");
    const auto groups = read_file("/proc/self/cgroup");
    const auto mount = mounts ? mount_of(hierarchy, *mounts) : std::nullopt;
    auto group = groups ? own_group(hierarchy, *groups) : std::nullopt;
    if (!mount || !group) return fail(ErrorCode::not_found, what + " are not mounted");
    if (mount->root != "/") {
        if (!group->starts_with(mount->root)) return fail(ErrorCode::not_found, what + " are not mounted completely");
        group->erase(0, mount->root.size());
    }
    std::string parent = mount->directory + *group;
    while (parent.ends_with('/')) parent.pop_back();
    if (auto usable = try_out(hierarchy, parent); !usable) return std::unexpected(usable.error().within(what));
    return parent;
}

Result<std::string> find_group_parent() {
    auto second = find_group_parent(GroupVersion::two);
    if (second) return second;
    auto first = find_group_parent(GroupVersion::one);
    if (first) return first;
    return fail(second.error().code, second.error().message + "; " + first.error().message);
}

Result<void> ControlGroup::enter() const {
    if (directory_.empty()) return fail(ErrorCode::invalid_argument, "there is no control group");
    if (::mkdir(directory_.c_str(), kMode) != 0 && errno != EEXIST) return fail_errno(errno, "make " + directory_);
    return write_to(directory_ + "/cgroup.procs", "0");
}

bool ControlGroup::kill_all() const {
    struct stat status{};
    if (directory_.empty() || ::stat(directory_.c_str(), &status) != 0) return true;
    if (!write_to(directory_ + "/cgroup.kill", "1")) {
        static_cast<void>(write_to(directory_ + "/freezer.state", "FROZEN"));
        kill_processes_of(directory_);
        // A frozen process dies when it is thawed.
        static_cast<void>(write_to(directory_ + "/freezer.state", "THAWED"));
    }
    // A group can be removed only when no process and no group is in it.
    for (const std::string& group : std::views::reverse(groups_in(directory_))) ::rmdir(group.c_str());
    return ::stat(directory_.c_str(), &status) != 0;
}

}  // namespace larder::scheduler
