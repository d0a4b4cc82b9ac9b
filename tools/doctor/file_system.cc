#include "tools/doctor/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <sstream>

#include "base/file.h"

namespace larder::doctor {
namespace {

// The kernel's own file systems that another machine serves. Others are programs: "fuse", "fuse.sshfs".
constexpr std::string_view kNetworkTypes[] = {"nfs",    "nfs4",     "cifs", "smb3",   "smbfs", "9p",
                                              "lustre", "ceph",     "gpfs", "beegfs", "afs",   "orangefs",
                                              "pvfs2",  "virtiofs", "coda", "ncpfs"};

bool is_program(std::string_view type) {
    return type == "fuse" || type == "fuseblk" || type.starts_with("fuse.") || type.starts_with("fuseblk.");
}

}  // namespace

FileSystem file_system_of(const std::string& directory) {
    struct statx status{};
    if (::statx(AT_FDCWD, directory.c_str(), 0, STATX_MNT_ID, &status) != 0) return {};
    if ((status.stx_mask & STATX_MNT_ID) == 0) return {};
    return find_file_system(read_file("/proc/self/mountinfo").value_or(""), status.stx_mnt_id);
}

FileSystem find_file_system(std::string_view mountinfo, std::uint64_t mount_id) {
    std::istringstream lines{std::string(mountinfo)};
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::uint64_t id = 0;
        if (!(words >> id) || id != mount_id) continue;
        for (std::string word; words >> word && word != "-";) {
        }
        FileSystem found;
        words >> found.type >> found.source;
        return found;
    }
    return {};
}

FileSystemAdvice advice_on(const FileSystem& file_system) {
    const std::string& type = file_system.type;
    const bool is_network = std::ranges::find(kNetworkTypes, type) != std::end(kNetworkTypes);
    const std::string is_on = "is on " + type + (is_network || is_program(type) ? " (" + file_system.source + ")" : "");
    constexpr const char* kMove =
        "put the state directory on ext4 or xfs on a disk of this node (larder up --state, state_directory of larderd)";
    if (is_network) {
        return {.is_no_disk = true,
                .found = is_on + ", which another machine serves",
                .advice = std::string(kMove) + ": its index is not safe there, and each hit would use the network"};
    }
    if (is_program(type)) {
        return {.is_no_disk = true,
                .found = is_on + ", which a program serves",
                .advice = std::string(kMove) + ": its index is not safe there, and each hit would pass that program"};
    }
    if (type == "tmpfs" || type == "ramfs") {
        return {.is_no_disk = true,
                .found = is_on + ", which is memory: it is empty after a restart of the machine",
                .advice = std::string(kMove) +
                          ". To cache in memory, give datasets a quota of it: larder quota set NAME "
                          "--memory SIZE"};
    }
    if (type == "overlay") {
        return {.is_no_disk = false,
                .found = is_on + ", as the own files of a container are",
                .advice =
                    "mount a directory of the node's disk into the container as the state directory (hostPath, "
                    "--volume): what is cached in the container's own files is lost with it"};
    }
    return {};
}

}  // namespace larder::doctor
