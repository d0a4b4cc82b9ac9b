#include "cache/remote/open_files.h"

#include <utility>

#include "base/assert.h"

namespace larder::cache {

OpenFiles::~OpenFiles() {
    for (OpenFile& file : files_) close(file);
}

OpenFile* OpenFiles::use(std::string_view path) {
    const std::uint64_t hash = std::hash<std::string_view>{}(path);
    for (OpenFile& file : files_) {
        if (file.path_hash != hash || file.path != path) continue;
        if (file.state != OpenFile::State::open && file.state != OpenFile::State::opening) continue;
        ++file.users;
        file.last_use = ++uses_;
        return &file;
    }
    return nullptr;
}

OpenFile* OpenFiles::claim(std::string_view path) {
    OpenFile* oldest = nullptr;
    for (OpenFile& file : files_)
        if (file.users == 0 && (oldest == nullptr || file.last_use < oldest->last_use)) oldest = &file;
    if (oldest == nullptr) return nullptr;
    close(*oldest);
    oldest->state = OpenFile::State::opening;
    oldest->users = 1;
    oldest->path_hash = std::hash<std::string_view>{}(path);
    oldest->last_use = ++uses_;
    oldest->path = path;
    return oldest;
}

void OpenFiles::retire(OpenFile& file) {
    file.state = OpenFile::State::retired;
}

void OpenFiles::leave(OpenFile& file) {
    LARDER_ASSERT(file.users > 0);
    if (--file.users == 0 && file.state == OpenFile::State::retired) close(file);
}

void OpenFiles::close(OpenFile& file) {
    if (file.fd >= 0) device_.close(std::exchange(file.fd, -1));
    file.state = OpenFile::State::unused;
    file.last_use = 0;
}

}  // namespace larder::cache
