#include "cache/dataset/index_raw.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "base/file.h"
#include "base/units.h"

namespace larder::cache {
namespace {

constexpr std::uint64_t kFilesPerProgress = 1024;

struct CloseDirectory {
    void operator()(DIR* directory) const { ::closedir(directory); }
};
using Directory = std::unique_ptr<DIR, CloseDirectory>;

class Walk {
public:
    Walk(const std::string& root, DatasetContent& content, const IndexProgressCallback& progress, std::stop_token stop)
        : root_(root), content_(content), progress_(progress), stop_(std::move(stop)) {}

    Result<void> run() {
        auto root = open_file(root_, O_RDONLY | O_DIRECTORY);
        if (!root) return std::unexpected(root.error());
        root_fd_ = std::move(*root);
        if (auto walked = directory("", protocol::kNoLabel); !walked) return walked;

        // Only now all classes are known, so only now a directory's label is its place among them.
        std::vector<Pending> top = std::move(pending_);
        pending_.clear();
        std::ranges::sort(top, {}, &Pending::path);
        for (auto& pending : top) {
            content_.classes.push_back(pending.path);
            pending.label = static_cast<std::uint32_t>(content_.classes.size() - 1);
            pending_.push_back(std::move(pending));
            while (!pending_.empty()) {
                const Pending next = std::move(pending_.back());
                pending_.pop_back();
                if (auto walked = directory(next.path, next.label); !walked) return walked;
            }
        }
        report();
        return {};
    }

    std::vector<std::string> notes() const {
        std::vector<std::string> notes;
        const auto add = [&](std::uint64_t count, const char* what) {
            if (count > 0) notes.push_back("left out " + std::to_string(count) + " " + what);
        };
        add(empty_files_, "empty file(s)");
        add(hidden_, "file(s) or directories whose names begin with a dot");
        add(directory_links_, "symbolic link(s) to directories");
        add(dangling_links_, "symbolic link(s) to nothing");
        add(others_, "entries that are neither file nor directory");
        return notes;
    }

private:
    struct Pending {
        std::string path;
        std::uint32_t label;
    };

    std::string full(const std::string& path) const { return path.empty() ? root_ : root_ + "/" + path; }

    // Takes in the files of one directory and puts its directories to `pending_`.
    Result<void> directory(const std::string& path, std::uint32_t label) {
        const int fd = ::openat(root_fd_.get(), path.empty() ? "." : path.c_str(),
                                O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) return fail_errno(errno, "open directory " + full(path));
        const Directory stream(::fdopendir(fd));
        if (!stream) {
            const int system_errno = errno;
            ::close(fd);
            return fail_errno(system_errno, "open directory " + full(path));
        }
        for (;;) {
            errno = 0;
            const dirent* found = ::readdir(stream.get());
            if (found == nullptr) break;
            const std::string_view name = found->d_name;
            if (name == "." || name == "..") continue;
            if (name.front() == '.') {
                ++hidden_;
                continue;
            }
            if (auto taken =
                    entry(fd, *found, path.empty() ? std::string(name) : path + "/" + std::string(name), label);
                !taken) {
                return taken;
            }
        }
        if (errno != 0) return fail_errno(errno, "read directory " + full(path));
        return {};
    }

    Result<void> entry(int directory_fd, const dirent& found, std::string path, std::uint32_t label) {
        if (found.d_type == DT_DIR) {
            pending_.push_back({std::move(path), label});
            return {};
        }
        struct stat status{};
        if (::fstatat(directory_fd, found.d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
            // Deleted since it was listed: as if it had never been.
            if (errno == ENOENT) return {};
            return fail_errno(errno, "stat " + full(path));
        }
        const bool is_link = S_ISLNK(status.st_mode);
        if (is_link && ::fstatat(directory_fd, found.d_name, &status, 0) != 0) {
            if (errno != ENOENT && errno != ELOOP) return fail_errno(errno, "stat " + full(path));
            ++dangling_links_;
            return {};
        }
        if (S_ISDIR(status.st_mode)) {
            if (is_link) {
                ++directory_links_;
            } else {
                pending_.push_back({std::move(path), label});
            }
            return {};
        }
        if (!S_ISREG(status.st_mode)) {
            ++others_;
            return {};
        }
        return file(path, status, label);
    }

    Result<void> file(const std::string& path, const struct stat& status, std::uint32_t label) {
        const auto size_bytes = static_cast<std::uint64_t>(status.st_size);
        if (size_bytes == 0) {
            ++empty_files_;
            return {};
        }
        if (size_bytes > protocol::kBlockBytesMax) {
            return fail(ErrorCode::unsupported, full(path) + " has " + format_bytes(size_bytes) +
                                                    "; a raw sample has at most " +
                                                    format_bytes(protocol::kBlockBytesMax));
        }
        const std::int64_t mtime_ns = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
        content_.add_object(path, size_bytes, mtime_ns, label);
        bytes_ += size_bytes;
        if (content_.objects.size() % kFilesPerProgress == 0) {
            if (stop_.stop_requested()) return fail(ErrorCode::cancelled, "indexing was cancelled");
            report();
        }
        return {};
    }

    void report() const {
        if (progress_) progress_({.objects_done = content_.objects.size(), .bytes_done = bytes_});
    }

    const std::string& root_;
    DatasetContent& content_;
    const IndexProgressCallback& progress_;
    std::stop_token stop_;
    FileDescriptor root_fd_;
    std::vector<Pending> pending_;
    std::uint64_t bytes_ = 0;
    std::uint64_t empty_files_ = 0;
    std::uint64_t hidden_ = 0;
    std::uint64_t directory_links_ = 0;
    std::uint64_t dangling_links_ = 0;
    std::uint64_t others_ = 0;
};

}  // namespace

Result<void> index_raw(const std::string& root, DatasetContent& content, std::vector<std::string>& notes,
                       const IndexProgressCallback& progress, std::stop_token stop) {
    Walk walk(root, content, progress, std::move(stop));
    if (auto walked = walk.run(); !walked) return walked;
    notes = walk.notes();
    if (content.objects.empty()) {
        std::string why = root + " has no files to train on";
        for (const auto& note : notes) why += "; " + note;
        return fail(ErrorCode::invalid_argument, why);
    }
    return {};
}

}  // namespace larder::cache
