#pragma once

// Opens files whose paths other users can change, by putting symbolic links on them. A program with more rights than
// those users must not follow such links to its own files. LinkRule says which links an open may follow; the kernel
// enforces it (openat2, Linux 5.6). If the kernel or a seccomp profile refuses openat2, the path is opened component
// by component, and then no link is followed. `/proc`'s magic links are never followed.
//
// All calls block. Descriptors are close-on-exec.

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/file.h"

struct open_how;

namespace larder {

enum class LinkRule : std::uint8_t {
    none,     // no symbolic link on the path is followed: the open fails with ELOOP
    beneath,  // links are followed as long as the path stays beneath the directory: else the open fails with EXDEV
};

// Returns the open_how that openat2 takes for `rule`.
open_how how_to_open(LinkRule rule, int flags);

// Opens `path`, relative to `directory` (or AT_FDCWD), without creating it. Returns the descriptor or a negative errno.
int open_at(int directory, const char* path, LinkRule rule, int flags);
// Does the same without openat2. With LinkRule::beneath every link counts as one that leads out (EXDEV).
int open_in_steps(int directory, const char* path, LinkRule rule, int flags);

struct TrustedDirectory {
    FileDescriptor fd;
    std::string real_path;  // without symbolic links at the time of the call
};

// Opens a directory by an absolute path for reading. Follows a symbolic link on the path only if it belongs to root or
// to the user of this process; the error for any other link names the link and its target.
Result<TrustedDirectory> open_trusted_directory(const std::string& path);

}  // namespace larder
