#include "cache/remote/file_remote.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <utility>

#include "base/assert.h"
#include "base/file.h"
#include "base/open_beneath.h"
#include "cache/remote/file_objects.h"
#include "cache/remote/open_files.h"

namespace larder::cache {

using protocol::BlockStatus;

class FileRemote;

// The state of one read: open, read until `into` is full, stat. `done` is always the next step.
struct FileRead : Operation {
    FileRemote* remote = nullptr;
    RemoteRead* request = nullptr;
    FileRead* next = nullptr;  // link in the free list or in OpenFile::waiting
    OpenFile* file = nullptr;  // null: the read owns `fd`
    int fd = -1;
    int root_fd = -1;  // open while a path with a link is opened beneath it
    int tries = 0;     // opens beneath `root_fd` so far
    std::size_t filled = 0;
    bool reopened = false;
    std::string path;
    struct statx stat{};
};

namespace {

constexpr int kFileFlags = O_RDONLY | O_NOCTTY;
constexpr int kOpenTriesMax = 100;
constexpr unsigned kReadsAtOnceMax = 32;

// True if a path of a manifest stays below the root.
bool is_below_root(std::string_view path) {
    if (path.empty() || path.front() == '/' || path.find('\0') != std::string_view::npos) return false;
    while (!path.empty()) {
        const std::size_t end = std::min(path.find('/'), path.size());
        if (path.substr(0, end) == "..") return false;
        path.remove_prefix(std::min(end + 1, path.size()));
    }
    return true;
}

std::int64_t mtime_ns(const struct statx& stat) {
    return stat.stx_mtime.tv_sec * 1'000'000'000 + stat.stx_mtime.tv_nsec;
}

BlockStatus status_of(int system_errno) {
    switch (system_errno) {
        case ENOENT:
        case ENOTDIR: return BlockStatus::object_missing;
        case EISDIR:
        case ESPIPE: return BlockStatus::object_changed;  // a FIFO or a terminal replaced the file
        default: return BlockStatus::remote_failed;
    }
}

}  // namespace

class FileRemote final : public Remote {
public:
    FileRemote(std::string root, Device& device, const FileRemoteOptions& options)
        : root_(std::move(root)),
          follow_symlinks_(options.follow_symlinks),
          problems_(options.problems),
          device_(device),
          files_(device, options.open_files) {
        device_.add_workers(kReadsAtOnceMax);
    }

    FileRemote(const FileRemote&) = delete;
    FileRemote& operator=(const FileRemote&) = delete;

    // Reads that Device::stop ended still own their descriptors.
    ~FileRemote() override {
        for (const FileRead& read : reads_) {
            if (read.request != nullptr && read.file == nullptr && read.fd >= 0) device_.close(read.fd);
            if (read.root_fd >= 0) device_.close(read.root_fd);
        }
        device_.remove_workers(kReadsAtOnceMax);
    }

    void read(RemoteRead& request) override {
        FileRead& read = allocate_read();
        request.remote_state = &read;
        read.request = &request;
        if (reads_at_device_ == kReadsAtOnceMax) {
            (waiting_first_ == nullptr ? waiting_first_ : waiting_last_->next) = &read;
            waiting_last_ = &read;
        } else {
            ++reads_at_device_;
            begin(read);
        }
    }

private:
    void begin(FileRead& read) {
        const RemoteRead& request = *read.request;
        if (is_below_root(request.path)) {
            read.path = root_;
            read.path += '/';
            read.path += request.path;
            open(read);
        } else {
            set_step(read, [](Operation& operation, std::int32_t) noexcept {
                auto& self = static_cast<FileRead&>(operation);
                self.remote->finish(self, BlockStatus::remote_failed, EINVAL);
            });
            device_.open("", O_RDONLY, 0, read);  // fails later: a completion never runs inside this call
        }
    }

    static void set_step(FileRead& read, void (*next)(Operation&, std::int32_t) noexcept) { read.done = next; }

    FileRead& allocate_read() {
        FileRead* read = free_;
        if (read != nullptr)
            free_ = read->next;
        else
            read = &reads_.emplace_back();
        read->remote = this;
        read->next = nullptr;
        read->file = nullptr;
        read->fd = -1;
        read->root_fd = -1;
        read->tries = 0;
        read->filled = 0;
        read->reopened = false;
        return *read;
    }

    void open(FileRead& read) {
        if (read.request->object_bytes > read.request->into.size()) {
            read.file = files_.use(read.path);
            if (read.file != nullptr && read.file->state == OpenFile::State::opening) {
                read.next = std::exchange(read.file->waiting, &read);
                return;
            }
            if (read.file != nullptr) {
                read.fd = read.file->fd;
                read_rest(read);
                return;
            }
            read.file = files_.claim(read.path);
        }
        set_step(read, [](Operation& operation, std::int32_t result) noexcept {
            auto& self = static_cast<FileRead&>(operation);
            if (result == -ELOOP && !self.remote->follow_symlinks_)
                self.remote->open_root(self);
            else
                self.remote->continue_opened(self, result);
        });
        if (follow_symlinks_)
            device_.open(read.path.c_str(), kFileFlags, 0, read);
        else
            device_.open_at(AT_FDCWD, read.path.c_str(), LinkRule::none, kFileFlags, read);
    }

    // Opens the root, to open a path with a link beneath it.
    void open_root(FileRead& read) {
        set_step(read, [](Operation& operation, std::int32_t result) noexcept {
            auto& self = static_cast<FileRead&>(operation);
            if (result < 0) return self.remote->continue_opened(self, result);
            self.root_fd = result;
            self.tries = 0;
            self.remote->open_beneath_root(self);
        });
        device_.open_at(AT_FDCWD, root_.empty() ? "/" : root_.c_str(), LinkRule::none, O_PATH | O_DIRECTORY, read);
    }

    void open_beneath_root(FileRead& read) {
        set_step(read, [](Operation& operation, std::int32_t result) noexcept {
            auto& self = static_cast<FileRead&>(operation);
            // The kernel asks for a retry if a directory was moved meanwhile.
            if (result == -EAGAIN && ++self.tries < kOpenTriesMax) return self.remote->open_beneath_root(self);
            self.remote->device_.close(std::exchange(self.root_fd, -1));
            self.remote->continue_opened(self, result);
        });
        device_.open_at(read.root_fd, read.path.c_str() + root_.size() + 1, LinkRule::beneath, kFileFlags, read);
    }

    // Continues `read`, which opened the file, and the reads that waited for the same open.
    void continue_opened(FileRead& read, std::int32_t result) {
        FileRead* waiting = nullptr;
        if (read.file != nullptr) {
            read.file->fd = result >= 0 ? result : -1;
            read.file->state = result >= 0 ? OpenFile::State::open : OpenFile::State::retired;
            waiting = std::exchange(read.file->waiting, nullptr);
        }
        for (FileRead* at = &read; at != nullptr;) {
            FileRead* after = at == &read ? waiting : at->next;
            at->next = nullptr;
            at->fd = result;
            if (result >= 0)
                read_rest(*at);
            else
                retry_or_fail(*at, -result);
            at = after;
        }
    }

    // Reads the missing bytes, then checks that the object has not changed.
    void read_rest(FileRead& read) {
        const RemoteRead& request = *read.request;
        if (read.filled == request.into.size()) {
            start_check(read);
            return;
        }
        set_step(read, [](Operation& operation, std::int32_t result) noexcept {
            auto& self = static_cast<FileRead&>(operation);
            if (result > 0) {
                self.filled += static_cast<std::size_t>(result);
                self.remote->read_rest(self);
            } else if (result == 0) {
                self.remote->start_check(self);
            } else if (result == -EINTR) {
                self.remote->read_rest(self);
            } else {
                self.remote->retry_or_fail(self, -result);
            }
        });
        device_.read(read.fd, request.into.subspan(read.filled), request.offset + read.filled, read);
    }

    void start_check(FileRead& read) {
        set_step(read, [](Operation& operation, std::int32_t result) noexcept {
            auto& self = static_cast<FileRead&>(operation);
            if (result < 0)
                self.remote->retry_or_fail(self, -result);
            else
                self.remote->finish_check(self);
        });
        device_.stat(read.fd, read.stat, read);
    }

    void finish_check(FileRead& read) {
        const RemoteRead& request = *read.request;
        const bool same = read.stat.stx_size == request.object_bytes && mtime_ns(read.stat) == request.object_mtime_ns;
        if (read.file != nullptr && (!same || read.stat.stx_nlink == 0)) files_.retire(*read.file);
        if (!same)
            finish(read, BlockStatus::object_changed, 0);
        else if (read.filled < request.into.size())
            finish(read, BlockStatus::object_truncated, 0);
        else
            finish(read, BlockStatus::ok, 0);
    }

    void retry_or_fail(FileRead& read, int system_errno) {
        if (read.file != nullptr) files_.retire(*read.file);
        // A network file system invalidated the descriptor, for example because the file was replaced: open it again.
        if (system_errno == ESTALE && !read.reopened) {
            read.reopened = true;
            read.filled = 0;
            release_file(read);
            open(read);
            return;
        }
        if (system_errno == EXDEV && problems_ != nullptr)
            problems_->note(read.request->path, link_leads_out(root_, read.request->path).message);
        finish(read, status_of(system_errno), system_errno);
    }

    void release_file(FileRead& read) {
        if (read.file != nullptr)
            files_.leave(*read.file);
        else if (read.fd >= 0)
            device_.close(read.fd);
        read.file = nullptr;
        read.fd = -1;
    }

    // Frees the state before `done` runs, because `done` may start the next read.
    void finish(FileRead& read, BlockStatus status, int system_errno) {
        release_file(read);
        RemoteRead& request = *std::exchange(read.request, nullptr);
        request.remote_state = nullptr;
        read.next = std::exchange(free_, &read);
        if (FileRead* next = waiting_first_; next != nullptr) {
            waiting_first_ = std::exchange(next->next, nullptr);
            begin(*next);
        } else {
            --reads_at_device_;
        }
        request.done(request, status, status == BlockStatus::remote_failed ? system_errno : 0);
    }

    const std::string root_;  // without symbolic links, unless they are followed; empty for "/"
    const bool follow_symlinks_;
    const std::shared_ptr<RemoteProblems> problems_;
    Device& device_;
    OpenFiles files_;
    std::deque<FileRead> reads_;
    FileRead* free_ = nullptr;
    unsigned reads_at_device_ = 0;
    FileRead* waiting_first_ = nullptr;  // reads that wait until the device has fewer
    FileRead* waiting_last_ = nullptr;   // if there is a first
};

Result<std::string> find_file_root(std::string root, bool follow_symlinks) {
    LARDER_ASSERT(root.starts_with('/'));
    if (follow_symlinks) {
        const auto directory = open_file(root, O_RDONLY | O_DIRECTORY);
        if (!directory) return std::unexpected(directory.error());
        return root;
    }
    auto directory = open_trusted_directory(root);
    if (!directory) return std::unexpected(directory.error());
    return std::move(directory->real_path);
}

std::unique_ptr<Remote> make_file_remote_at(std::string found_root, Device& device, const FileRemoteOptions& options) {
    LARDER_ASSERT(found_root.starts_with('/') && options.open_files > 0);
    if (found_root == "/") found_root.clear();
    return std::make_unique<FileRemote>(std::move(found_root), device, options);
}

Result<std::unique_ptr<Remote>> make_file_remote(std::string root, Device& device, const FileRemoteOptions& options) {
    auto found = find_file_root(std::move(root), options.follow_symlinks);
    if (!found) return std::unexpected(found.error());
    return make_file_remote_at(std::move(*found), device, options);
}

}  // namespace larder::cache
