#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "base/huge_pages.h"

namespace larder {
namespace {

// Reserves address space at a multiple of kHugePageBytes, for a MAP_FIXED mapping. Returns null when there is none.
void* reserve_aligned_addresses(std::size_t bytes) {
    const std::size_t room = bytes + kHugePageBytes;
    void* const taken = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (taken == MAP_FAILED) return nullptr;
    auto* const begin = static_cast<std::byte*>(taken);
    const std::size_t before = -reinterpret_cast<std::uintptr_t>(begin) & (kHugePageBytes - 1);
    const std::size_t mapped = (bytes + kPageBytes - 1) & ~(kPageBytes - 1);
    if (before > 0) ::munmap(begin, before);
    ::munmap(begin + before + mapped, room - before - mapped);
    return begin + before;
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
        reset();
        fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
}

void FileDescriptor::reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Result<Mapping> Mapping::of(int fd, std::size_t bytes, Access access) {
    const int protection = access == Access::read_only ? PROT_READ : PROT_READ | PROT_WRITE;
    void* const place = bytes >= kHugePageBytes ? reserve_aligned_addresses(bytes) : nullptr;
    void* data = ::mmap(place, bytes, protection, MAP_SHARED | (place != nullptr ? MAP_FIXED : 0), fd, 0);
    if (data == MAP_FAILED) {
        const int error = errno;
        if (place != nullptr) ::munmap(place, bytes);
        return fail_errno(error, "mmap of " + std::to_string(bytes) + " bytes");
    }
    return Mapping(static_cast<std::byte*>(data), bytes);
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
    if (this != &other) {
        reset();
        data_ = std::exchange(other.data_, nullptr);
        bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
}

void Mapping::reset() {
    if (data_ != nullptr) ::munmap(std::exchange(data_, nullptr), std::exchange(bytes_, 0));
}

Result<FileDescriptor> open_file(const std::string& path, int flags, unsigned mode) {
    const int fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
    if (fd < 0) return fail_errno(errno, "open " + path);
    return FileDescriptor(fd);
}

Result<std::string> read_file(const std::string& path) {
    auto file = open_file(path, O_RDONLY);
    if (!file) return std::unexpected(file.error());
    return read_all(*file, path);
}

Result<std::string> read_all(const FileDescriptor& file, const std::string& path) {
    std::string content;
    struct stat status = {};
    if (::fstat(file.get(), &status) == 0 && status.st_size > 0) {
        content.reserve(static_cast<std::size_t>(status.st_size));
    }
    char buffer[16384];
    for (;;) {
        const ssize_t got = ::read(file.get(), buffer, sizeof buffer);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno(errno, "read " + path);
        if (got == 0) return content;
        content.append(buffer, static_cast<std::size_t>(got));
    }
}

namespace {

Result<void> replace(const std::string& path, std::string_view content, unsigned mode, bool synced) {
    const std::string temporary = path + ".new";
    auto file = open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC, mode);
    if (!file) return std::unexpected(file.error());
    for (std::size_t written = 0; written < content.size();) {
        const ssize_t put = ::write(file->get(), content.data() + written, content.size() - written);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return fail_errno(errno, "write " + temporary);
        written += static_cast<std::size_t>(put);
    }
    if (synced && ::fsync(file->get()) != 0) return fail_errno(errno, "fsync " + temporary);
    if (::rename(temporary.c_str(), path.c_str()) != 0) return fail_errno(errno, "rename " + temporary);
    return {};
}

std::string directory_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) return {};
    return path.substr(0, std::max<std::size_t>(slash, 1));
}

}  // namespace

Result<void> replace_file(const std::string& path, std::string_view content, unsigned mode) {
    if (auto replaced = replace(path, content, mode, true); !replaced) return replaced;
    return sync_directory(directory_of(path));
}

Result<void> replace_file_unsynced(const std::string& path, std::string_view content, unsigned mode) {
    return replace(path, content, mode, false);
}

Result<void> sync_directory(const std::string& path) {
    const std::string directory_path = path.empty() ? "." : path;
    const auto directory = open_file(directory_path, O_RDONLY | O_DIRECTORY);
    if (!directory) return std::unexpected(directory.error());
    if (::fsync(directory->get()) != 0) return fail_errno(errno, "fsync " + directory_path);
    return {};
}

}  // namespace larder
