// larder-minimal-fuse SOURCE DIRECTORY: the peer of bench/mount.py. It is as small as a libfuse program can be that
// serves the files of SOURCE from memory: it copies them into one memfd, of huge pages if there are any, and answers
// each read with the bytes that the memfd's mapping has. Files are read past the kernel's page cache, as `larder mount`
// has it. Prints a line when it serves, and ends when the directory is unmounted.

#define FUSE_USE_VERSION 314
#include <fcntl.h>
#include <fuse3/fuse_lowlevel.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr double kKept_s = 86'400;
constexpr std::size_t kPage_bytes = 4096;

struct Node {
    std::map<std::string, fuse_ino_t> entries;  // of a directory
    bool is_directory = false;
    std::size_t offset = 0;  // of a file, in the memory
    std::size_t bytes = 0;
};

std::vector<Node> nodes(2);  // by inode number; 1 is the root
const char* memory = nullptr;

std::size_t add_tree(const std::filesystem::path& source, fuse_ino_t directory, std::size_t offset,
                     std::vector<std::pair<std::filesystem::path, fuse_ino_t>>& files) {
    nodes[directory].is_directory = true;
    for (const auto& entry : std::filesystem::directory_iterator(source)) {
        const fuse_ino_t inode = nodes.size();
        nodes.emplace_back();
        nodes[directory].entries.emplace(entry.path().filename(), inode);
        if (entry.is_directory()) {
            offset = add_tree(entry.path(), inode, offset, files);
        } else {
            nodes[inode].offset = offset;
            nodes[inode].bytes = entry.file_size();
            files.emplace_back(entry.path(), inode);
            offset += (nodes[inode].bytes + kPage_bytes - 1) / kPage_bytes * kPage_bytes;
        }
    }
    return offset;
}

// Copies all files into a memfd.
bool load(const char* source) {
    std::vector<std::pair<std::filesystem::path, fuse_ino_t>> files;
    const std::size_t bytes = add_tree(source, FUSE_ROOT_ID, 0, files);
    const int file = ::memfd_create("minimal", MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) return false;
    void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) return false;
    ::madvise(mapped, bytes, MADV_HUGEPAGE);
    char* const into = static_cast<char*>(mapped);
    for (const auto& [path, inode] : files) {
        const int from = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        for (std::size_t done = 0; done < nodes[inode].bytes;) {
            const ssize_t got = ::read(from, into + nodes[inode].offset + done, nodes[inode].bytes - done);
            if (got <= 0) return false;
            done += static_cast<std::size_t>(got);
        }
        ::close(from);
    }
    memory = into;
    return true;
}

struct stat attributes(fuse_ino_t inode) {
    struct stat attributes{};
    attributes.st_ino = inode;
    attributes.st_mode = nodes[inode].is_directory ? S_IFDIR | 0555 : S_IFREG | 0444;
    attributes.st_nlink = 1;
    attributes.st_size = static_cast<off_t>(nodes[inode].bytes);
    return attributes;
}

void init(void*, fuse_conn_info* connection) {
    connection->max_write = 1 << 20;
}

void lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
    const auto found = nodes[parent].entries.find(name);
    if (found == nodes[parent].entries.end()) {
        fuse_reply_err(request, ENOENT);
        return;
    }
    const fuse_entry_param entry{.ino = found->second,
                                 .generation = 0,
                                 .attr = attributes(found->second),
                                 .attr_timeout = kKept_s,
                                 .entry_timeout = kKept_s};
    fuse_reply_entry(request, &entry);
}

void get_attributes(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
    const struct stat found = attributes(inode);
    fuse_reply_attr(request, &found, kKept_s);
}

void open_file(fuse_req_t request, fuse_ino_t, fuse_file_info* file) {
    file->direct_io = 1;
    file->noflush = 1;
    fuse_reply_open(request, file);
}

void read_file(fuse_req_t request, fuse_ino_t inode, std::size_t bytes_max, off_t offset, fuse_file_info*) {
    const std::size_t from = std::min(static_cast<std::size_t>(offset), nodes[inode].bytes);
    fuse_reply_buf(request, memory + nodes[inode].offset + from, std::min(bytes_max, nodes[inode].bytes - from));
}

void list(fuse_req_t request, fuse_ino_t inode, std::size_t bytes_max, off_t offset, fuse_file_info*) {
    std::vector<char> answer(bytes_max);
    std::size_t used = 0;
    off_t position = 0;
    for (const auto& [name, entry] : nodes[inode].entries) {
        if (++position <= offset) continue;
        const struct stat found = attributes(entry);
        const std::size_t needed =
            fuse_add_direntry(request, answer.data() + used, answer.size() - used, name.c_str(), &found, position);
        if (needed > answer.size() - used) break;
        used += needed;
    }
    fuse_reply_buf(request, answer.data(), used);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fputs("usage: larder-minimal-fuse SOURCE DIRECTORY\n", stderr);
        return 2;
    }
    if (!load(argv[1])) {
        std::perror("larder-minimal-fuse: cannot copy the files into memory");
        return 1;
    }
    fuse_lowlevel_ops operations{};
    operations.init = init;
    operations.lookup = lookup;
    operations.getattr = get_attributes;
    operations.open = open_file;
    operations.read = read_file;
    operations.readdir = list;
    std::array<std::string, 3> words{argv[0], "-o", "ro,fsname=minimal"};
    std::array<char*, 4> pointers{words[0].data(), words[1].data(), words[2].data(), nullptr};
    fuse_args arguments = FUSE_ARGS_INIT(3, pointers.data());
    fuse_session* const session = fuse_session_new(&arguments, &operations, sizeof operations, nullptr);
    if (session == nullptr || fuse_session_mount(session, argv[2]) != 0) return 1;
    std::puts("serving");
    std::fflush(stdout);
    fuse_loop_config* const config = fuse_loop_cfg_create();
    fuse_loop_cfg_set_max_threads(config, 32);
    fuse_loop_cfg_set_idle_threads(config, 32);
    const int ended = fuse_session_loop_mt(session, config);
    fuse_loop_cfg_destroy(config);
    fuse_session_destroy(session);
    return ended == 0 ? 0 : 1;
}
