#pragma once

// Files for FakeDevice: a flat set of paths (any parent directory is taken to exist). Each file's bytes are in a sparse
// memfd, so that a preallocated gigabyte costs nothing and a plain pread on an open file sees the device's writes. A
// disk outlives the devices on it: after a crash, a test makes a new FakeDevice on the same disk. Completed writes
// persist.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"

namespace larder::test {

struct FakeFile {
    FakeFile();
    // Return the bytes transferred, or a negative errno.
    std::int32_t read(std::span<std::byte> into, std::uint64_t offset) const;
    std::int32_t write(std::span<const std::byte> from, std::uint64_t offset);

    FileDescriptor memory_fd;
    std::uint64_t bytes = 0;      // the file's size
    std::uint64_t allocated = 0;  // the bytes of the disk that the file uses
    std::int64_t mtime_ns = 0;
    std::uint64_t inode = 0;
    bool linked = true;
};

class FakeDisk {
public:
    explicit FakeDisk(std::uint64_t bytes_max = ~std::uint64_t{0}) : bytes_max_(bytes_max) {}
    FakeDisk(const FakeDisk&) = delete;
    FakeDisk& operator=(const FakeDisk&) = delete;

    // For tests that change files behind the device's back.
    void put(const std::string& path, std::span<const std::byte> content, std::int64_t mtime_ns = 0);
    void put(const std::string& path, std::string_view content, std::int64_t mtime_ns = 0);
    std::string content(const std::string& path) const;  // empty if there is no such file
    bool exists(const std::string& path) const { return files_.contains(path); }
    std::vector<std::string> paths() const;
    void truncate(const std::string& path, std::uint64_t bytes);
    void flip_bit(const std::string& path, std::uint64_t bit);
    void set_bytes_max(std::uint64_t bytes_max) { bytes_max_ = bytes_max; }
    std::uint64_t bytes_used() const { return bytes_used_; }

    // A copy of all files, to restore later.
    using Snapshot = std::map<std::string, std::pair<std::string, std::int64_t>>;
    Snapshot snapshot() const;
    void restore(const Snapshot& snapshot);

    // For FakeDevice.
    std::shared_ptr<FakeFile> find(const std::string& path) const;
    std::shared_ptr<FakeFile> create(const std::string& path);
    bool unlink(const std::string& path);
    // Allocates [0, bytes) to the file; returns false if the disk is full.
    bool allocate(FakeFile& file, std::uint64_t bytes);

private:
    std::map<std::string, std::shared_ptr<FakeFile>> files_;
    std::uint64_t bytes_max_;
    std::uint64_t bytes_used_ = 0;
    std::uint64_t inodes_ = 0;
};

}  // namespace larder::test
