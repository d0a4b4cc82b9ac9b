#pragma once

// A mount that hangs, as one of NFS does whose server is gone: whatever asks it for anything waits until the object
// ends. It is a FUSE file system that answers nothing after the kernel's greeting. Needs root and /dev/fuse. The test
// itself must not look at the path meanwhile.

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mount.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <string>

#include "base/file.h"

namespace larder::test {

class HungMount {
public:
    explicit HungMount(std::string path) : path_(std::move(path)), fd_(::open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
        if (!fd_) return;
        const std::string options =
            "fd=" + std::to_string(fd_.get()) + ",rootmode=40000,user_id=0,group_id=0,allow_other";
        mounted_ = ::mount("hung", path_.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0 && greet();
    }
    ~HungMount() {
        fd_.reset();  // ends all requests
        ::umount2(path_.c_str(), MNT_DETACH);
    }
    HungMount(const HungMount&) = delete;
    HungMount& operator=(const HungMount&) = delete;

    bool mounted() const { return mounted_; }
    // True once something waits for an answer.
    bool is_asked() const {
        pollfd asked{.fd = fd_.get(), .events = POLLIN, .revents = 0};
        return ::poll(&asked, 1, 0) == 1;
    }

private:
    bool greet() const {
        alignas(fuse_in_header) std::array<std::byte, 1 << 16> request;
        if (::read(fd_.get(), request.data(), request.size()) < static_cast<ssize_t>(sizeof(fuse_in_header)))
            return false;
        fuse_in_header header;
        std::memcpy(&header, request.data(), sizeof header);
        if (header.opcode != FUSE_INIT) return false;
        struct {
            fuse_out_header header;
            fuse_init_out init;
        } answer{};
        answer.header = {.len = sizeof answer, .error = 0, .unique = header.unique};
        answer.init.major = FUSE_KERNEL_VERSION;
        answer.init.minor = FUSE_KERNEL_MINOR_VERSION;
        answer.init.max_write = 4096;
        return ::write(fd_.get(), &answer, sizeof answer) == static_cast<ssize_t>(sizeof answer);
    }

    const std::string path_;
    FileDescriptor fd_;
    bool mounted_ = false;
};

}  // namespace larder::test
