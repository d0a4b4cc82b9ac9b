#pragma once

// The Remote of a directory: local disk, NFS, Lustre. Reads go through the Device and the page cache, so that other
// readers of the same files benefit, and network file systems read ahead.
//
// A read compares the object's size and mtime with the manifest AFTER reading the bytes, on the same descriptor. A
// check before the read would add nothing: a writer changes the mtime before it changes a byte, so bytes read before an
// unchanged stat are the old bytes. An object read whole is opened for each read. For larger objects (shards) the last
// few descriptors stay open. A descriptor whose file has changed, or was deleted or replaced (no link left), is closed
// after the read, so that the next read opens the path again.

#include <memory>
#include <string>

#include "cache/device.h"
#include "cache/remote.h"

namespace larder::cache {

struct FileRemoteOptions {
    std::size_t open_files = 64;  // number of descriptors of large objects that stay open
};

// `root` is the absolute path of a readable directory. `device` must outlive the remote.
Result<std::unique_ptr<Remote>> make_file_remote(std::string root, Device& device,
                                                 const FileRemoteOptions& options = {});

}  // namespace larder::cache
