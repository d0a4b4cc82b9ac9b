#include "cache/control/state_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

namespace larder::cache {

Result<FileDescriptor> lock_state_directory(const std::string& directory) {
    const std::string path = directory + "/larderd.lock";
    auto file = open_file(path, O_RDWR | O_CREAT, 0644);
    if (!file) return file;
    if (::flock(file->get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) return fail_errno(errno, "lock " + path);
        const auto owner = read_file(path);
        const std::string pid = owner && !owner->empty() ? owner->substr(0, owner->find('\n')) : "unknown";
        return fail(ErrorCode::already_exists, "another daemon (pid " + pid + ") runs on " + directory +
                                                   ": stop it, or give this one a state_directory of its own");
    }
    const std::string pid = std::to_string(::getpid()) + "\n";
    const bool written = ::ftruncate(file->get(), 0) == 0 &&
                         ::pwrite(file->get(), pid.data(), pid.size(), 0) == static_cast<ssize_t>(pid.size());
    if (!written) return fail_errno(errno, "write " + path);
    return file;
}

}  // namespace larder::cache
