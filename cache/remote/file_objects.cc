#include "cache/remote/file_objects.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/open_beneath.h"

namespace larder::cache {
namespace {

constexpr std::uint64_t kFilesPerReport = 1024;
constexpr std::uint64_t kEntriesPerStopCheck = 1024;
// Paths to one directory. Folders that link to each other have more paths than memory can hold.
constexpr unsigned kPathsMax = 100;

std::int64_t mtime_ns(const struct stat& status) {
    return std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

struct CloseDirectory {
    void operator()(DIR* directory) const { ::closedir(directory); }
};
using Directory = std::unique_ptr<DIR, CloseDirectory>;

// A directory and the files below it, opened under the rule for links.
class Root {
public:
    static Result<Root> open(const std::string& path, bool follow_symlinks) {
        if (follow_symlinks) {
            auto fd = open_file(path, O_RDONLY | O_DIRECTORY);
            if (!fd) return std::unexpected(fd.error());
            return Root(path, std::move(*fd), true);
        }
        auto directory = open_trusted_directory(path);
        if (!directory) return std::unexpected(directory.error());
        return Root(path, std::move(directory->fd), false);
    }

    // `path` is relative to the root; empty: the root itself.
    Result<FileDescriptor> open(const std::string& path, int flags) const {
        const char* relative = path.empty() ? "." : path.c_str();
        const int opened = follow_symlinks_ ? ::openat(fd_.get(), relative, flags | O_CLOEXEC)
                                            : open_at(fd_.get(), relative, LinkRule::beneath, flags);
        const int system_errno = follow_symlinks_ ? errno : -opened;
        if (opened >= 0) return FileDescriptor(opened);
        if (system_errno == EXDEV) return std::unexpected(link_leads_out(path_, path));
        const char* what = (flags & O_DIRECTORY) != 0 ? "open directory " : "open ";
        return fail_errno(system_errno, what + full_path(path));
    }

    std::string full_path(const std::string& path) const { return path.empty() ? path_ : path_ + "/" + path; }

private:
    Root(std::string path, FileDescriptor fd, bool follow_symlinks)
        : path_(std::move(path)), fd_(std::move(fd)), follow_symlinks_(follow_symlinks) {}

    std::string path_;
    FileDescriptor fd_;
    bool follow_symlinks_;
};

class Walk {
public:
    Walk(const Root& root, const std::function<void(std::uint64_t, std::uint64_t)>& on_found, std::stop_token stop)
        : root_(root), on_found_(on_found), stop_(std::move(stop)) {}

    Result<ObjectListing> run() {
        if (auto walked = list_directory(""); !walked) return std::unexpected(walked.error());
        listing_.top_directories = pending_;
        std::ranges::sort(listing_.top_directories);
        while (!pending_.empty()) {
            const std::string next = std::move(pending_.back());
            pending_.pop_back();
            if (auto walked = list_directory(next); !walked) return std::unexpected(walked.error());
        }
        report();
        listing_.sort();
        add_note(listing_.empty.size(), "empty file(s)");
        add_note(hidden_, "file(s) or directories whose names begin with a dot");
        add_note(circular_links_, "symbolic link(s) to directories they are in");
        add_note(dangling_links_, "broken symbolic link(s)");
        add_note(others_, others_ == 1 ? "entry that is neither file nor directory"
                                       : "entries that are neither file nor directory");
        return std::move(listing_);
    }

private:
    void add_note(std::uint64_t count, const char* what) {
        if (count > 0) listing_.notes.push_back("left out " + std::to_string(count) + " " + what);
    }

    static std::unexpected<Error> cancelled() { return fail(ErrorCode::cancelled, "indexing was cancelled"); }

    // Lists the files of one directory and adds its directories to `pending_`.
    Result<void> list_directory(const std::string& path) {
        auto opened = root_.open(path, O_RDONLY | O_DIRECTORY);
        if (!opened) return std::unexpected(opened.error());
        const int fd = opened->get();
        const Directory stream(::fdopendir(fd));
        if (!stream) return fail_errno(errno, "open directory " + root_.full_path(path));
        opened->release();  // `stream` owns it
        struct stat status{};
        if (::fstat(fd, &status) != 0) return fail_errno(errno, "open directory " + root_.full_path(path));
        if (is_circular(path, status)) {
            ++circular_links_;
            std::erase(listing_.top_directories, path);
            return {};
        }
        if (++paths_[{status.st_dev, status.st_ino}] > kPathsMax) {
            return fail(ErrorCode::invalid_argument, "directory " + root_.full_path(path) +
                                                         " is reached by more than " + std::to_string(kPathsMax) +
                                                         " paths through symbolic links: remove links to it");
        }
        for (;;) {
            if (entries_++ % kEntriesPerStopCheck == 0 && stop_.stop_requested()) return cancelled();
            errno = 0;
            const dirent* found = ::readdir(stream.get());
            if (found == nullptr) break;
            const std::string_view name = found->d_name;
            if (name == "." || name == "..") continue;
            if (name.front() == '.') {
                ++hidden_;
                continue;
            }
            auto added = add_entry(fd, *found, path.empty() ? std::string(name) : path + "/" + std::string(name));
            if (!added) return added;
        }
        if (errno != 0) return fail_errno(errno, "read directory " + root_.full_path(path));
        return {};
    }

    // True if a symbolic link made `path` one of its own parents. Else stores the identity of the directory.
    bool is_circular(const std::string& path, const struct stat& status) {
        const std::pair<dev_t, ino_t> identity(status.st_dev, status.st_ino);
        if (!path.empty() && identities_.at("") == identity) return true;
        for (std::size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
            if (identities_.at(path.substr(0, slash)) == identity) return true;
        }
        identities_.emplace(path, identity);
        return false;
    }

    Result<void> add_entry(int directory_fd, const dirent& found, std::string path) {
        if (found.d_type == DT_DIR) {
            pending_.push_back(std::move(path));
            return {};
        }
        struct stat status{};
        if (::fstatat(directory_fd, found.d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
            // The file was deleted after readdir returned it: ignore it.
            if (errno == ENOENT) return {};
            return fail_errno(errno, "stat " + root_.full_path(path));
        }
        if (S_ISLNK(status.st_mode)) {
            const auto target = root_.open(path, O_PATH);
            if (!target) {
                const int system_errno = target.error().system_errno;
                if (system_errno != ENOENT && system_errno != ELOOP) return std::unexpected(target.error());
                ++dangling_links_;
                return {};
            }
            if (::fstat(target->get(), &status) != 0) return fail_errno(errno, "stat " + root_.full_path(path));
        }
        if (S_ISDIR(status.st_mode)) {
            pending_.push_back(std::move(path));
            return {};
        }
        if (!S_ISREG(status.st_mode)) {
            ++others_;
            return {};
        }
        return add_file(path, status);
    }

    Result<void> add_file(const std::string& path, const struct stat& status) {
        if (status.st_size == 0) {
            listing_.empty.push_back(path);
            return {};
        }
        const auto size_bytes = static_cast<std::uint64_t>(status.st_size);
        listing_.add(path, size_bytes, mtime_ns(status));
        bytes_ += size_bytes;
        if (listing_.objects.size() % kFilesPerReport == 0) {
            if (stop_.stop_requested()) return cancelled();
            report();
        }
        return {};
    }

    void report() const {
        if (on_found_) on_found_(listing_.objects.size(), bytes_);
    }

    const Root& root_;
    const std::function<void(std::uint64_t, std::uint64_t)>& on_found_;
    std::stop_token stop_;
    ObjectListing listing_;
    std::vector<std::string> pending_;
    std::uint64_t bytes_ = 0;
    std::uint64_t hidden_ = 0;
    std::uint64_t circular_links_ = 0;
    std::uint64_t entries_ = 0;
    std::map<std::string, std::pair<dev_t, ino_t>> identities_;  // key: path of the directory
    std::map<std::pair<dev_t, ino_t>, unsigned> paths_;          // by which the directory was listed
    std::uint64_t dangling_links_ = 0;
    std::uint64_t others_ = 0;
};

class FileReader final : public ObjectReader {
public:
    FileReader(FileDescriptor fd, const struct stat& status)
        : fd_(std::move(fd)), size_bytes_(static_cast<std::uint64_t>(status.st_size)), tag_(mtime_ns(status)) {
        // The kernel's read-ahead would fetch the payloads between the headers.
        ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_RANDOM);
    }

    std::uint64_t size_bytes() const override { return size_bytes_; }
    std::int64_t tag() const override { return tag_; }

    Result<std::span<const std::byte>> read(std::uint64_t offset, std::size_t bytes) override {
        buffer_.resize(bytes);
        for (std::size_t got = 0; got < bytes;) {
            const ssize_t more =
                ::pread(fd_.get(), buffer_.data() + got, bytes - got, static_cast<off_t>(offset + got));
            if (more < 0 && errno == EINTR) continue;
            if (more < 0) return fail_errno(errno, "read at offset " + std::to_string(offset));
            if (more == 0) return fail(ErrorCode::changed, "it became shorter while it was read");
            got += static_cast<std::size_t>(more);
        }
        return std::span<const std::byte>(buffer_);
    }

private:
    FileDescriptor fd_;
    std::uint64_t size_bytes_;
    std::int64_t tag_;
    std::vector<std::byte> buffer_;
};

class FileObjects final : public ObjectSource {
public:
    FileObjects(std::string root, bool follow_symlinks) : root_(std::move(root)), follow_symlinks_(follow_symlinks) {}

    std::string description() const override { return root_; }

    Result<ObjectListing> list(const std::function<void(std::uint64_t, std::uint64_t)>& found,
                               std::stop_token stop) override {
        const auto root = opened_root();
        if (!root) return std::unexpected(root.error());
        return Walk(**root, found, std::move(stop)).run();
    }

    Result<std::unique_ptr<ObjectReader>> open(const std::string& path) override {
        // O_NONBLOCK: a FIFO may have replaced the listed file, and a plain open of a FIFO blocks.
        const auto root = opened_root();
        if (!root) return std::unexpected(root.error());
        auto file = (*root)->open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
        if (!file) return std::unexpected(file.error());
        struct stat status{};
        if (::fstat(file->get(), &status) != 0) return fail_errno(errno, "stat " + root_ + "/" + path);
        if (!S_ISREG(status.st_mode)) return fail(ErrorCode::changed, root_ + "/" + path + " is no longer a file");
        return std::make_unique<FileReader>(std::move(*file), status);
    }

private:
    // Opens the root at the first call that can.
    Result<const Root*> opened_root() {
        const std::scoped_lock lock(mutex_);
        if (!opened_) {
            auto opened = Root::open(root_, follow_symlinks_);
            if (!opened) return std::unexpected(opened.error());
            opened_.emplace(std::move(*opened));
        }
        return &*opened_;
    }

    const std::string root_;
    const bool follow_symlinks_;
    std::mutex mutex_;
    std::optional<Root> opened_;  // guarded by `mutex_`; constant once set
};

}  // namespace

std::unique_ptr<ObjectSource> make_file_objects(std::string root, bool follow_symlinks) {
    return std::make_unique<FileObjects>(std::move(root), follow_symlinks);
}

Error link_leads_out(const std::string& root, std::string_view path) {
    return {ErrorCode::permission_denied,
            root + "/" + std::string(path) +
                ": a symbolic link on this path leads out of the dataset's directory, or is absolute. Links must be "
                "relative and stay beneath the directory: remove the link, or give --follow-symlinks "
                "(follow_symlinks), which a daemon allows root and its own user only",
            EXDEV};
}

}  // namespace larder::cache
