#include "base/file_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <thread>

namespace larder {
namespace {

// Returns the process number in the lock file, or 0 while the new holder of the lock has not yet written its number.
pid_t owner_of(const std::string& path) {
    pid_t owner = 0;
    if (const auto text = read_file(path)) std::from_chars(text->data(), text->data() + text->size(), owner);
    return owner;
}

bool is_alive(pid_t process) {
    return process > 0 && (::kill(process, 0) == 0 || errno == EPERM);
}

}  // namespace

Result<FileDescriptor> lock_file(const std::string& path, unsigned mode) {
    constexpr int kTries = 3000;
    constexpr std::chrono::milliseconds kPause{10};
    auto file = open_file(path, O_RDWR | O_CREAT, mode);
    const bool is_read_only = !file && file.error().system_errno == EROFS;
    if (is_read_only) file = open_file(path, O_RDONLY);
    if (!file) return file;
    // An earlier version may have made it so that others can lock it.
    if (!is_read_only) static_cast<void>(::fchmod(file->get(), mode));
    for (int tries = 1; ::flock(file->get(), LOCK_EX | LOCK_NB) != 0; ++tries) {
        if (errno != EWOULDBLOCK) return fail_errno(errno, "lock " + path);
        const pid_t owner = owner_of(path);
        if (is_alive(owner) || tries == kTries) {
            return fail(ErrorCode::already_exists, path + " is locked by process " + std::to_string(owner));
        }
        std::this_thread::sleep_for(kPause);
    }
    if (is_read_only) return file;
    const std::string process = std::to_string(::getpid()) + "\n";
    const bool written = ::ftruncate(file->get(), 0) == 0 && ::pwrite(file->get(), process.data(), process.size(), 0) ==
                                                                 static_cast<ssize_t>(process.size());
    if (!written) return fail_errno(errno, "write " + path);
    return file;
}

}  // namespace larder
