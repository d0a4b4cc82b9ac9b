#pragma once

// The Remote of a directory: local disk, NFS, Lustre. Reads go through the Device and the page cache (on purpose: other
// readers of the same files profit, and network file systems read ahead).
//
// That an object is still the one the manifest describes is checked by size and mtime AFTER its bytes were read, on the
// same descriptor. That is enough, and a check before would add nothing: a writer moves the mtime before it changes a
// byte, so bytes read before an unchanged stat are the old ones. An object read whole is opened each time. Of larger
// ones (shards) the descriptors of the last few stay open; one whose file was deleted or replaced (no link left)
// or has changed is closed after that read, so the next opens what the path names now.

#include <memory>
#include <string>

#include "cache/device.h"
#include "cache/remote.h"

namespace larder::cache {

struct FileRemoteOptions {
    std::size_t open_files = 64;  // descriptors of large objects that stay open
};

// `root` is an absolute path of a readable directory; `device` must outlive the remote.
Result<std::unique_ptr<Remote>> make_file_remote(std::string root, Device& device,
                                                 const FileRemoteOptions& options = {});

}  // namespace larder::cache
