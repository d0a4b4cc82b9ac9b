#include "cache/control/state_lock.h"

#include "base/file_lock.h"

namespace larder::cache {

Result<FileDescriptor> lock_state_directory(const std::string& directory) {
    auto file = lock_file(directory + "/larderd.lock", 0644);
    if (file || file.error().code != ErrorCode::already_exists) return file;
    return fail(ErrorCode::already_exists, "another daemon runs on " + directory + " (" + file.error().message +
                                               "): stop it, or give this one a state_directory of its own");
}

}  // namespace larder::cache
