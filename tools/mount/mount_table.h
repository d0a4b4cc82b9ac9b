#pragma once

// The mounts that this process sees.

#include <cstdint>
#include <optional>
#include <string>

namespace larder::mount {

struct MountPoint {
    std::uint64_t id = 0;  // no two mounts have one at a time
    std::string type;      // "fuse.larder" for those of larder mount
};

inline constexpr const char* kMountType = "fuse.larder";

// The uppermost mount on the directory, whose path is absolute and without links. It may be one whose process is gone.
std::optional<MountPoint> find_mount(const std::string& directory);

}  // namespace larder::mount
