#pragma once

// A read-only file system of a dataset, served to the kernel through FUSE. Files are read past the kernel's page cache
// unless asked otherwise, as it would hold what the node's cache holds already.

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "tools/mount/sample_pool.h"
#include "tools/mount/tree.h"

struct fuse_session;

namespace larder::mount {

// The owner, group and mode of all files.
struct TreeAccess {
    uid_t owner = 0;
    gid_t group = 0;
    mode_t mode = 0400;  // of files; directories may be searched by those who may read
};

struct MountOptions {
    std::string dataset;
    std::string directory;  // exists
    TreeAccess access;
    bool allow_other = false;  // users other than this process's may use the mount
    bool kernel_cache = false;
    unsigned threads_max = 512;  // requests that are served at a time
};

class FileSystem {
public:
    // Mounts. `pool` must outlive the file system.
    static Result<std::unique_ptr<FileSystem>> mount(MountOptions options, SamplePool& pool);
    ~FileSystem();

    // Serves the kernel until the directory is unmounted or `unmount` is called.
    void run();
    // Unmounts, so that `run` returns once no file is open. May be called from another thread. Leaves another mount on
    // the same directory alone.
    void unmount();

    // True if the program whose request this thread serves is being killed, or the file system is being unmounted.
    static bool is_interrupted();

private:
    FileSystem(MountOptions options, SamplePool& pool);

    friend struct Operations;

    const MountOptions options_;
    SamplePool& pool_;
    const std::unique_ptr<Tree> tree_;
    fuse_session* session_ = nullptr;
    std::uint64_t mount_id_ = 0;
    std::atomic<bool> is_mounted_ = false;
};

}  // namespace larder::mount
