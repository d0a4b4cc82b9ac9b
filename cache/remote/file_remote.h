#pragma once

// The Remote of a directory: local disk, NFS, Lustre. Reads go through the Device and the page cache, so that other
// readers of the same files benefit, and network file systems read ahead.
//
// A read compares the object's size and mtime with the manifest AFTER reading the bytes, on the same descriptor. A
// check before the read would add nothing: a writer changes the mtime before it changes a byte, so if the mtime is
// still the old one after the read, no byte had been changed when it was read. An object read whole is opened for each
// read. For larger objects (shards) the last few descriptors stay open. A descriptor whose file has changed, or was
// deleted or replaced (no link left), is closed after the read, so that the next read opens the path again.
//
// A symbolic link is followed only if it stays beneath the root: otherwise anyone who may write to the root could
// make the daemon read any file. An open first follows no link at all, which takes one operation. If the path has a
// link, the root is opened, then the file beneath the root. Links on the way to the root are resolved once, when the
// remote is made (open_trusted_directory). With `follow_symlinks` all links are followed.
//
// A remote has a limited number of reads at the device, and workers of the device for as many: a mount that hangs holds
// these, and no others.

#include <memory>
#include <string>

#include "cache/device.h"
#include "cache/remote.h"
#include "cache/remote/remote_problems.h"

namespace larder::cache {

struct FileRemoteOptions {
    std::size_t open_files = 64;  // number of descriptors of large objects that stay open
    bool follow_symlinks = false;
    std::shared_ptr<RemoteProblems> problems;  // gets the reason when a link makes a read fail; may be null
};

// Opens `root`, the absolute path of a readable directory, once, and returns its path as a FileRemote uses it: without
// symbolic links, unless they are followed. Blocks, on a hung mount for ever.
Result<std::string> find_file_root(std::string root, bool follow_symlinks);

// Makes the remote of a directory that find_file_root has returned. Does not block. `device` must outlive the remote.
std::unique_ptr<Remote> make_file_remote_at(std::string found_root, Device& device, const FileRemoteOptions& options);

// Does both.
Result<std::unique_ptr<Remote>> make_file_remote(std::string root, Device& device,
                                                 const FileRemoteOptions& options = {});

}  // namespace larder::cache
