#include "tools/mount/file_system.h"

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/server/logging.h"
#include "tools/mount/mount_table.h"

namespace larder::mount {
namespace {

// A manifest never changes, so the kernel may keep what it has seen of the tree.
constexpr double kKept_s = 86'400;
constexpr std::size_t kReadMax_bytes = 1 << 20;
constexpr std::uint64_t kBlock_bytes = 4096;  // as statvfs counts
constexpr unsigned kIdleThreadsMax = 4;

std::atomic<bool> is_ending = false;
thread_local fuse_req_t current_request = nullptr;  // the one that this thread serves

// The last message of libfuse while it mounted.
std::string libfuse_message;

void note_message(fuse_log_level, const char* format, va_list values) {
    std::array<char, 512> text{};
    std::vsnprintf(text.data(), text.size(), format, values);
    libfuse_message = text.data();
    while (libfuse_message.ends_with('\n')) libfuse_message.pop_back();
}

void log_message(fuse_log_level, const char* format, va_list values) {
    std::array<char, 512> text{};
    std::vsnprintf(text.data(), text.size(), format, values);
    log_warn("libfuse says", {{"message", std::string_view(text.data())}});
}

// True if SIGKILL awaits the thread. The kernel makes each signal that ends a process one.
bool is_being_killed(pid_t thread) {
    constexpr std::uint64_t kKill = std::uint64_t{1} << (SIGKILL - 1);
    const std::string status = read_file("/proc/" + std::to_string(thread) + "/status").value_or("");
    if (status.empty()) return true;
    std::uint64_t pending = 0;
    for (const std::string_view key : {"\nSigPnd:\t", "\nShdPnd:\t"}) {
        const std::size_t at = status.find(key);
        if (at == std::string::npos) continue;
        std::uint64_t signals = 0;
        std::from_chars(status.data() + at + key.size(), status.data() + status.size(), signals, 16);
        pending |= signals;
    }
    return (pending & kKill) != 0;
}

// The errno for an error, of which programs know few.
int errno_of(const Error& error) {
    switch (error.code) {
        case ErrorCode::cancelled: return EINTR;
        case ErrorCode::permission_denied: return EACCES;
        default: return EIO;
    }
}

}  // namespace

// The functions that libfuse calls. A request's user data is the FileSystem.
struct Operations {
    static FileSystem& of(fuse_req_t request) { return *static_cast<FileSystem*>(fuse_req_userdata(request)); }

    // Called first by operations that may wait for samples.
    static FileSystem& begin(fuse_req_t request) {
        current_request = request;
        return of(request);
    }

    static struct stat attributes(const FileSystem& files, const Node& node) {
        const mode_t mode = files.options_.access.mode & 0444;
        struct stat attributes{};
        attributes.st_ino = node.inode;
        attributes.st_uid = files.options_.access.owner;
        attributes.st_gid = files.options_.access.group;
        attributes.st_mode = node.is_directory ? S_IFDIR | mode | (mode >> 2) : S_IFREG | mode;
        attributes.st_nlink = node.is_directory ? 2 : 1;
        attributes.st_size = static_cast<off_t>(node.size_bytes);
        attributes.st_blocks = static_cast<blkcnt_t>((node.size_bytes + 511) / 512);
        attributes.st_blksize = kReadMax_bytes;
        const auto since_1970 = std::chrono::nanoseconds(node.modified_ns);
        const auto seconds = std::chrono::floor<std::chrono::seconds>(since_1970);
        attributes.st_mtim = {.tv_sec = seconds.count(), .tv_nsec = (since_1970 - seconds).count()};
        attributes.st_ctim = attributes.st_mtim;
        attributes.st_atim = attributes.st_mtim;
        return attributes;
    }

    static fuse_entry_param entry(const FileSystem& files, const Node& node) {
        return {.ino = node.inode,
                .generation = 0,
                .attr = attributes(files, node),
                .attr_timeout = kKept_s,
                .entry_timeout = kKept_s};
    }

    static void init(void*, fuse_conn_info* connection) {
        // Lets the kernel ask for this many bytes at a time.
        connection->max_write = kReadMax_bytes;
        connection->want |= connection->capable & FUSE_CAP_PARALLEL_DIROPS;
    }

    // Answers a request that failed, and returns true, if it has.
    static bool has_failed(fuse_req_t request, const auto& result, std::string_view what) {
        if (result) return false;
        const Error& error = result.error();
        if (error.code != ErrorCode::cancelled) {
            log_warn("a request failed",
                     {{"dataset", of(request).options_.dataset}, {"request", what}, {"problem", error.message}});
        }
        fuse_reply_err(request, errno_of(error));
        return true;
    }

    static void lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
        const FileSystem& files = begin(request);
        const auto node = files.tree_->find(parent, name);
        if (has_failed(request, node, name)) return;
        // An inode of 0 lets the kernel keep that there is nothing of this name.
        fuse_entry_param found{};
        found.entry_timeout = kKept_s;
        if (*node) found = entry(files, **node);
        fuse_reply_entry(request, &found);
    }

    static void get_attributes(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
        const FileSystem& files = begin(request);
        const auto node = files.tree_->node(inode);
        if (has_failed(request, node, "attributes")) return;
        if (!*node) {
            fuse_reply_err(request, ENOENT);
            return;
        }
        const struct stat found = attributes(files, **node);
        fuse_reply_attr(request, &found, kKept_s);
    }

    static void open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
        if ((file->flags & O_ACCMODE) != O_RDONLY) {
            fuse_reply_err(request, EROFS);
            return;
        }
        const bool caches = of(request).options_.kernel_cache;
        file->direct_io = caches ? 0 : 1;
        file->keep_cache = caches ? 1 : 0;
        file->noflush = 1;
        FileSystem& files = of(request);
        const auto content = files.tree_->content(inode);
        if (content) files.pool_.note_open(content->sample);
        // If the program is gone, nothing will be released.
        if (fuse_reply_open(request, file) != 0 && content) files.pool_.note_closed(content->sample);
    }

    static void release(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
        if (const auto content = of(request).tree_->content(inode)) of(request).pool_.note_closed(content->sample);
        fuse_reply_err(request, 0);
    }

    static void read(fuse_req_t request, fuse_ino_t inode, std::size_t bytes_max, off_t offset, fuse_file_info*) {
        FileSystem& files = begin(request);
        const auto file = files.tree_->content(inode);
        if (!file) {
            fuse_reply_err(request, EISDIR);
            return;
        }
        const auto sample = files.pool_.get(file->sample);
        if (has_failed(request, sample, "read")) return;
        const std::span<const Field> fields = (*sample)->fields;
        const auto bytes = file->field < fields.size() ? fields[file->field].bytes : std::span<const std::byte>();
        const std::uint64_t from = std::min<std::uint64_t>(static_cast<std::uint64_t>(offset), bytes.size());
        const std::size_t count = std::min<std::size_t>(bytes_max, bytes.size() - from);
        fuse_reply_buf(request, reinterpret_cast<const char*>(bytes.data() + from), count);
    }

    static void list(fuse_req_t request, fuse_ino_t inode, std::size_t bytes_max, off_t offset, bool with_attributes) {
        const FileSystem& files = begin(request);
        std::vector<char> answer(bytes_max);
        std::size_t used = 0;
        const auto add = [&](const std::string& name, const Node& node, std::uint64_t next) {
            char* const into = answer.data() + used;
            const std::size_t left = answer.size() - used;
            std::size_t needed = 0;
            if (with_attributes) {
                fuse_entry_param found = entry(files, node);
                if (name == "." || name == "..") found.ino = 0;  // the kernel must not count them as looked up
                needed = fuse_add_direntry_plus(request, into, left, name.c_str(), &found, static_cast<off_t>(next));
            } else {
                struct stat found{};
                found.st_ino = node.inode;
                found.st_mode = node.is_directory ? S_IFDIR : S_IFREG;
                needed = fuse_add_direntry(request, into, left, name.c_str(), &found, static_cast<off_t>(next));
            }
            if (needed > left) return false;
            used += needed;
            return true;
        };
        // Offsets 0 and 1 are "." and "..". The tree's listing begins at 2.
        const Node self{.inode = inode, .is_directory = true};
        bool has_room = true;
        if (offset == 0) has_room = add(".", self, 1);
        if (has_room && offset <= 1) has_room = add("..", self, 2);
        std::uint64_t position = offset <= 2 ? 0 : static_cast<std::uint64_t>(offset) - 2;
        while (has_room) {
            const auto next = files.tree_->entry_at(inode, position);
            // The answer has the entries listed so far; the next request meets the error again.
            if (!next && used > 0) break;
            if (has_failed(request, next, "listing")) return;
            if (!*next) break;
            has_room = add((*next)->name, (*next)->node, (*next)->next + 2);
            position = (*next)->next;
        }
        fuse_reply_buf(request, answer.data(), used);
    }

    static void read_directory(fuse_req_t request, fuse_ino_t inode, std::size_t bytes_max, off_t offset,
                               fuse_file_info*) {
        list(request, inode, bytes_max, offset, false);
    }

    static void read_directory_plus(fuse_req_t request, fuse_ino_t inode, std::size_t bytes_max, off_t offset,
                                    fuse_file_info*) {
        list(request, inode, bytes_max, offset, true);
    }

    static void open_directory(fuse_req_t request, fuse_ino_t, fuse_file_info* file) {
        file->cache_readdir = 1;
        file->keep_cache = 1;
        fuse_reply_open(request, file);
    }

    static void statistics(fuse_req_t request, fuse_ino_t) {
        const protocol::Manifest& manifest = of(request).pool_.manifest();
        struct statvfs about{};
        about.f_bsize = kBlock_bytes;
        about.f_frsize = kBlock_bytes;
        about.f_blocks = (manifest.total_bytes() + kBlock_bytes - 1) / kBlock_bytes;
        about.f_files = manifest.object_count();
        about.f_namemax = 255;
        fuse_reply_statfs(request, &about);
    }

    static constexpr fuse_lowlevel_ops table() {
        fuse_lowlevel_ops table{};
        table.init = init;
        table.lookup = lookup;
        table.getattr = get_attributes;
        table.open = open;
        table.read = read;
        table.release = release;
        table.opendir = open_directory;
        table.readdir = read_directory;
        table.readdirplus = read_directory_plus;
        table.statfs = statistics;
        return table;
    }
};

FileSystem::FileSystem(MountOptions options, SamplePool& pool)
    : options_(std::move(options)), pool_(pool), tree_(Tree::make(pool)) {}

Result<std::unique_ptr<FileSystem>> FileSystem::mount(MountOptions options, SamplePool& pool) {
    std::unique_ptr<FileSystem> files(new FileSystem(std::move(options), pool));
    const std::string name = "larder:" + files->options_.dataset;
    std::string mount_options = "ro,default_permissions,subtype=larder,fsname=";
    for (const char c : name) {
        if (c == ',' || c == '\\') mount_options += '\\';
        mount_options += c;
    }
    if (files->options_.allow_other) mount_options += ",allow_other";
    std::array<std::string, 3> words{"larder", "-o", mount_options};
    std::array<char*, 4> pointers{words[0].data(), words[1].data(), words[2].data(), nullptr};
    fuse_args arguments = FUSE_ARGS_INIT(3, pointers.data());
    static constexpr fuse_lowlevel_ops kOperations = Operations::table();
    fuse_set_log_func(note_message);
    files->session_ = fuse_session_new(&arguments, &kOperations, sizeof kOperations, files.get());
    fuse_opt_free_args(&arguments);
    if (files->session_ == nullptr) return fail(ErrorCode::internal, "libfuse refuses to start: " + libfuse_message);
    if (fuse_session_mount(files->session_, files->options_.directory.c_str()) != 0) {
        return fail(ErrorCode::internal, "cannot mount on " + files->options_.directory + ": " + libfuse_message);
    }
    fuse_set_log_func(log_message);
    if (const auto mounted = find_mount(files->options_.directory)) files->mount_id_ = mounted->id;
    files->is_mounted_ = true;
    return files;
}

FileSystem::~FileSystem() {
    unmount();
    if (session_ != nullptr) fuse_session_destroy(session_);
}

void FileSystem::run() {
    // Few threads wait while there is little to do, so that the same ones, whose caches are warm, take turns.
    fuse_loop_config* const config = fuse_loop_cfg_create();
    fuse_loop_cfg_set_max_threads(config, options_.threads_max);
    fuse_loop_cfg_set_idle_threads(config, kIdleThreadsMax);
    fuse_session_loop_mt(session_, config);
    fuse_loop_cfg_destroy(config);
}

void FileSystem::unmount() {
    is_ending = true;
    if (!is_mounted_.exchange(false)) return;
    const auto mounted = find_mount(options_.directory);
    if (mounted && mounted->id == mount_id_) {
        fuse_session_unmount(session_);
    } else {
        fuse_session_exit(session_);
    }
}

bool FileSystem::is_interrupted() {
    if (is_ending) return true;
    // Programs take EINTR for an error of the disk, so signals that they handle do not end a read, as on a local disk.
    return current_request != nullptr && fuse_req_interrupted(current_request) != 0 &&
           is_being_killed(fuse_req_ctx(current_request)->pid);
}

}  // namespace larder::mount
