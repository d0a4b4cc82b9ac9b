#pragma once

// A fresh directory under $TMPDIR (or /tmp) for one test, removed with all it holds.

#include <filesystem>
#include <string>

namespace larder::test {

class TempDirectory {
public:
    TempDirectory();
    ~TempDirectory();
    TempDirectory(const TempDirectory&) = delete;
    TempDirectory& operator=(const TempDirectory&) = delete;

    const std::filesystem::path& path() const { return path_; }
    // Returns the path of a name within it, as the file functions take it.
    std::string operator/(const std::string& name) const { return (path_ / name).string(); }

private:
    std::filesystem::path path_;
};

}  // namespace larder::test
