#include "tools/mount/mount_table.h"

#include <sstream>

#include "base/file.h"

namespace larder::mount {
namespace {

// The kernel writes spaces, tabs, newlines and backslashes as a backslash and three octal digits.
std::string without_escapes(const std::string& text) {
    std::string plain;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\' && i + 3 < text.size()) {
            plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
            i += 3;
        } else {
            plain += text[i];
        }
    }
    return plain;
}

}  // namespace

std::optional<MountPoint> find_mount(const std::string& directory) {
    std::optional<MountPoint> found;
    std::istringstream lines(read_file("/proc/self/mountinfo").value_or(""));
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        MountPoint mount;
        std::string parent;
        std::string device;
        std::string root;
        std::string place;
        words >> mount.id >> parent >> device >> root >> place;
        std::string word;
        while (words >> word && word != "-") {
        }
        words >> mount.type;
        // Later lines lie above earlier ones.
        if (without_escapes(place) == directory) found = std::move(mount);
    }
    return found;
}

}  // namespace larder::mount
