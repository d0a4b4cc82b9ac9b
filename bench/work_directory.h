#pragma once

// A fresh directory for one run of a bench, removed with everything in it.

#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"

namespace larder::bench {

class WorkDirectory {
public:
    // Makes a directory under `parent`, or under $TMPDIR or /tmp if `parent` is empty.
    static Result<WorkDirectory> make(const std::string& parent);
    WorkDirectory(WorkDirectory&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
    WorkDirectory& operator=(WorkDirectory&&) = delete;
    ~WorkDirectory();

    const std::string& path() const { return path_; }
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }

private:
    explicit WorkDirectory(std::string path) : path_(std::move(path)) {}
    std::string path_;
};

struct FileSet {
    std::string directory;
    std::uint32_t count = 0;
    std::uint64_t bytes_each = 0;
    std::uint64_t total_bytes() const { return count * bytes_each; }
};

// Writes `count` files of pseudo-random bytes, 000000.bin upwards: a raw dataset of equal blocks.
Result<FileSet> write_files(const std::string& directory, std::uint32_t count, std::uint64_t bytes_each);

}  // namespace larder::bench
