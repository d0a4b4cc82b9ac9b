#pragma once

// On which file system a directory is, and whether a daemon's state may be there: it needs a disk of its node.

#include <cstdint>
#include <string>
#include <string_view>

namespace larder::doctor {

struct FileSystem {
    std::string type;    // as the kernel names it: "ext4", "nfs4", "fuse.sshfs"; empty: not known
    std::string source;  // what is mounted: a device, "host:/directory"
};

// The file system of a directory that exists.
FileSystem file_system_of(const std::string& directory);

// The mount with this number in the text of /proc/PID/mountinfo.
FileSystem find_file_system(std::string_view mountinfo, std::uint64_t mount_id);

struct FileSystemAdvice {
    bool is_no_disk = false;  // measuring says nothing about a disk
    std::string found;        // empty: nothing is wrong with it
    std::string advice;
};
FileSystemAdvice advice_on(const FileSystem& file_system);

}  // namespace larder::doctor
