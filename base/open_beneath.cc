#include "base/open_beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <deque>
#include <optional>
#include <string_view>
#include <vector>

namespace larder {
namespace {

constexpr int kLinksMax = 40;    // as many as the kernel follows
constexpr int kTriesMax = 1000;  // openat2 asks for a retry if a directory is moved meanwhile
constexpr int kDirectoryFlags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// The error of a link that an open may not follow.
int link_error(LinkRule rule) {
    return rule == LinkRule::none ? -ELOOP : -EXDEV;
}

int open_how_at(int directory, const char* path, open_how how) {
    for (int tries = 1;; ++tries) {
        const long opened = ::syscall(SYS_openat2, directory, path, &how, sizeof how);
        if (opened >= 0) return static_cast<int>(opened);
        if (errno != EINTR && (errno != EAGAIN || tries == kTriesMax)) return -errno;
    }
}

// False if the kernel lacks openat2 (ENOSYS) or a seccomp profile refuses it (ENOSYS or EPERM).
bool has_openat2() {
    static const bool has = [] {
        const FileDescriptor probe(open_how_at(AT_FDCWD, "/", how_to_open(LinkRule::none, O_PATH | O_DIRECTORY)));
        return static_cast<bool>(probe);
    }();
    return has;
}

bool is_link(int directory, const std::string& name) {
    struct stat status{};
    return ::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode);
}

void prepend_components(std::deque<std::string>& components, std::string_view path) {
    std::vector<std::string> split;
    while (!path.empty()) {
        const std::size_t end = std::min(path.find('/'), path.size());
        if (end > 0 && path.substr(0, end) != ".") split.emplace_back(path.substr(0, end));
        path.remove_prefix(std::min(end + 1, path.size()));
    }
    components.insert(components.begin(), split.begin(), split.end());
}

// The target of `name`, a symbolic link; nullopt if it is not a link, with `system_errno` set.
struct Link {
    std::string target;
    uid_t owner = 0;
};
std::optional<Link> read_link(int directory, const std::string& name, int& system_errno) {
    const FileDescriptor link(::openat(directory, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat status{};
    if (!link || ::fstat(link.get(), &status) != 0) {
        system_errno = errno;
        return std::nullopt;
    }
    std::array<char, PATH_MAX> target{};
    const ssize_t bytes = S_ISLNK(status.st_mode) ? ::readlinkat(link.get(), "", target.data(), target.size()) : -1;
    if (bytes < 0) {
        system_errno = ENOTDIR;
        return std::nullopt;
    }
    return Link{.target = {target.data(), static_cast<std::size_t>(bytes)}, .owner = status.st_uid};
}

}  // namespace

open_how how_to_open(LinkRule rule, int flags) {
    open_how how{};
    how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
    how.resolve = RESOLVE_NO_MAGICLINKS | (rule == LinkRule::none ? RESOLVE_NO_SYMLINKS : RESOLVE_BENEATH);
    return how;
}

int open_at(int directory, const char* path, LinkRule rule, int flags) {
    if (!has_openat2()) return open_in_steps(directory, path, rule, flags);
    return open_how_at(directory, path, how_to_open(rule, flags));
}

int open_in_steps(int directory, const char* path, LinkRule rule, int flags) {
    const bool absolute = path[0] == '/';
    if (absolute && rule == LinkRule::beneath) return -EXDEV;
    std::deque<std::string> components;
    prepend_components(components, path);
    if (components.empty()) components.emplace_back(".");
    FileDescriptor parent;
    int at = directory;
    if (absolute) {
        parent = FileDescriptor(::open("/", kDirectoryFlags));
        if (!parent) return -errno;
        at = parent.get();
    }
    while (!components.empty()) {
        const std::string name = std::move(components.front());
        components.pop_front();
        if (name == ".." && rule == LinkRule::beneath) return -EXDEV;
        const bool last = components.empty();
        const int opened = ::openat(at, name.c_str(), last ? flags | O_NOFOLLOW | O_CLOEXEC : kDirectoryFlags);
        if (opened < 0) {
            const int system_errno = errno;
            const bool stopped_by_link = (system_errno == ELOOP || system_errno == ENOTDIR) && is_link(at, name);
            return stopped_by_link ? link_error(rule) : -system_errno;
        }
        // An O_PATH open of a link opens the link itself.
        if (last && (flags & O_PATH) != 0 && (flags & O_DIRECTORY) == 0) {
            struct stat status{};
            if (::fstat(opened, &status) == 0 && S_ISLNK(status.st_mode)) {
                ::close(opened);
                return link_error(rule);
            }
        }
        if (last) return opened;
        parent = FileDescriptor(opened);
        at = opened;
    }
    return -ENOENT;
}

Result<TrustedDirectory> open_trusted_directory(const std::string& path) {
    const auto failed = [&](int system_errno) { return fail_errno(system_errno, "open " + path); };
    std::deque<std::string> components;
    prepend_components(components, path);
    std::vector<std::string> real;
    FileDescriptor at(::open("/", kDirectoryFlags));
    if (!at) return failed(errno);
    const auto real_path = [&] {
        std::string text;
        for (const std::string& name : real) text += "/" + name;
        return text.empty() ? std::string("/") : text;
    };
    for (int links = 0; !components.empty();) {
        const std::string name = std::move(components.front());
        components.pop_front();
        FileDescriptor next(::openat(at.get(), name.c_str(), kDirectoryFlags));
        if (next) {
            if (name != "..") {
                real.push_back(name);
            } else if (!real.empty()) {
                real.pop_back();
            }
            at = std::move(next);
            continue;
        }
        int system_errno = errno;
        if (system_errno != ENOTDIR && system_errno != ELOOP) return failed(system_errno);
        const auto link = read_link(at.get(), name, system_errno);
        if (!link) return failed(system_errno);
        if (++links > kLinksMax) return failed(ELOOP);
        if (link->owner != 0 && link->owner != ::geteuid()) {
            const std::string link_path = real.empty() ? "/" + name : real_path() + "/" + name;
            return std::unexpected(Error{ErrorCode::permission_denied,
                                         "the symbolic link " + link_path + " to " + link->target + ", on the way to " +
                                             path + ", belongs to user " + std::to_string(link->owner) +
                                             ", who could point it at files that are not theirs: only links of root "
                                             "and of the daemon's own user "
                                             "are followed there; give the path without the link",
                                         ELOOP});
        }
        if (link->target.starts_with('/')) {
            at = FileDescriptor(::open("/", kDirectoryFlags));
            if (!at) return failed(errno);
            real.clear();
        }
        prepend_components(components, link->target);
    }
    FileDescriptor readable(::openat(at.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!readable) return failed(errno);
    return TrustedDirectory{.fd = std::move(readable), .real_path = real_path()};
}

}  // namespace larder
