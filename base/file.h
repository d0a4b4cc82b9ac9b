#pragma once

// Owners of kernel objects: a file descriptor and a memory mapping. Move-only, closed on destruction. Also the few
// whole-file helpers that start-up code needs. Nothing here is for the data plane.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace larder {

class FileDescriptor {
public:
    FileDescriptor() = default;
    explicit FileDescriptor(int fd) : fd_(fd) {}
    FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    FileDescriptor& operator=(FileDescriptor&& other) noexcept;
    ~FileDescriptor() { reset(); }

    int get() const { return fd_; }
    int release() { return std::exchange(fd_, -1); }
    explicit operator bool() const { return fd_ >= 0; }
    void reset();

private:
    int fd_ = -1;
};

// A shared mapping of [0, size) of a file or memfd. If it is large enough for a huge page, huge pages fit in it.
class Mapping {
public:
    enum class Access : std::uint8_t { read_only, read_write };

    Mapping() = default;
    static Result<Mapping> of(int fd, std::size_t bytes, Access access);
    Mapping(Mapping&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Mapping& operator=(Mapping&& other) noexcept;
    ~Mapping() { reset(); }

    std::byte* data() const { return data_; }
    std::size_t size() const { return bytes_; }
    std::span<std::byte> span() const { return {data_, bytes_}; }
    explicit operator bool() const { return data_ != nullptr; }
    void reset();

private:
    Mapping(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
};

// Calls open(2) with O_CLOEXEC added; the error names the path.
Result<FileDescriptor> open_file(const std::string& path, int flags, unsigned mode = 0644);

// Reads the whole file as a string; meant for configs and small state files.
Result<std::string> read_file(const std::string& path);

// Reads the rest of an open file. `path` is for messages.
Result<std::string> read_all(const FileDescriptor& file, const std::string& path);

// Writes a temporary file beside `path`, syncs it and renames it over `path`: readers see either the old file or the
// new one, whole. When this returns, the new file survives a power cut.
Result<void> replace_file(const std::string& path, std::string_view content, unsigned mode = 0644);

// Replaces the file as replace_file does, without waiting for the disk: after a power cut the file may be old, missing
// or empty.
Result<void> replace_file_unsynced(const std::string& path, std::string_view content, unsigned mode = 0644);

// Syncs a directory, so that the names in it survive a power cut. An empty path names the working directory.
Result<void> sync_directory(const std::string& path);

}  // namespace larder
