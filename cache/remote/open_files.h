#pragma once

// The open files of a FileRemote. Large objects are read a block at a time, in random order, so the last few
// descriptors stay open. There is a fixed number of entries, compared by hash; nothing is allocated once each entry has
// had a path. An entry in use is never reused for another file. A retired entry (its file is stale) is not found any
// more and is closed when its last user leaves.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cache/device.h"

namespace larder::cache {

struct FileRead;

struct OpenFile {
    enum class State : std::uint8_t { unused, opening, open, retired };
    State state = State::unused;
    int fd = -1;
    std::uint32_t users = 0;
    std::uint64_t path_hash = 0;
    std::uint64_t last_use = 0;
    std::string path;
    FileRead* waiting = nullptr;  // reads that wait for the open
};

class OpenFiles {
public:
    OpenFiles(Device& device, std::size_t count) : device_(device), files_(count) {}
    OpenFiles(const OpenFiles&) = delete;
    OpenFiles& operator=(const OpenFiles&) = delete;
    ~OpenFiles();

    // Returns the entry of `path`, open or opening, and adds a user to it. Returns null if there is no entry.
    OpenFile* use(std::string_view path);
    // Returns a new entry for `path`, opening, with one user. Returns null if all entries are in use.
    OpenFile* claim(std::string_view path);
    void retire(OpenFile& file);
    void leave(OpenFile& file);

private:
    void close(OpenFile& file);

    Device& device_;
    std::vector<OpenFile> files_;
    std::uint64_t uses_ = 0;
};

}  // namespace larder::cache
