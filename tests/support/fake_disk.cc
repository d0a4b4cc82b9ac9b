#include "tests/support/fake_disk.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/assert.h"

namespace larder::test {

FakeFile::FakeFile() : memory_fd(::memfd_create("fake-file", MFD_CLOEXEC)) {
    LARDER_ASSERT(memory_fd);
}

std::int32_t FakeFile::read(std::span<std::byte> into, std::uint64_t offset) const {
    if (offset >= bytes) return 0;
    const std::size_t count = std::min<std::uint64_t>(into.size(), bytes - offset);
    const ssize_t got = ::pread(memory_fd.get(), into.data(), count, static_cast<off_t>(offset));
    return got < 0 ? -errno : static_cast<std::int32_t>(got);
}

std::int32_t FakeFile::write(std::span<const std::byte> from, std::uint64_t offset) {
    const ssize_t put = ::pwrite(memory_fd.get(), from.data(), from.size(), static_cast<off_t>(offset));
    if (put < 0) return -errno;
    bytes = std::max(bytes, offset + static_cast<std::uint64_t>(put));
    return static_cast<std::int32_t>(put);
}

void FakeDisk::put(const std::string& path, std::span<const std::byte> content, std::int64_t mtime_ns) {
    unlink(path);
    const auto file = create(path);
    LARDER_ASSERT(allocate(*file, content.size()));
    LARDER_ASSERT(file->write(content, 0) == static_cast<std::int32_t>(content.size()));
    file->mtime_ns = mtime_ns;
}

void FakeDisk::put(const std::string& path, std::string_view content, std::int64_t mtime_ns) {
    put(path, std::as_bytes(std::span(content)), mtime_ns);
}

std::string FakeDisk::content(const std::string& path) const {
    const auto file = find(path);
    if (file == nullptr) return {};
    std::string content(file->bytes, '\0');
    LARDER_ASSERT(file->read(std::as_writable_bytes(std::span(content)), 0) >= 0);
    return content;
}

std::vector<std::string> FakeDisk::paths() const {
    std::vector<std::string> paths;
    for (const auto& [path, file] : files_) paths.push_back(path);
    return paths;
}

void FakeDisk::truncate(const std::string& path, std::uint64_t bytes) {
    const auto file = find(path);
    LARDER_ASSERT(file != nullptr && ::ftruncate(file->memory_fd.get(), static_cast<off_t>(bytes)) == 0);
    file->bytes = bytes;
}

void FakeDisk::flip_bit(const std::string& path, std::uint64_t bit) {
    const auto file = find(path);
    LARDER_ASSERT(file != nullptr && bit / 8 < file->bytes);
    std::byte byte{};
    file->read({&byte, 1}, bit / 8);
    byte ^= std::byte{1} << (bit % 8);
    file->write({&byte, 1}, bit / 8);
}

FakeDisk::Snapshot FakeDisk::snapshot() const {
    Snapshot snapshot;
    for (const auto& [path, file] : files_) snapshot[path] = {content(path), file->mtime_ns};
    return snapshot;
}

void FakeDisk::restore(const Snapshot& snapshot) {
    for (const std::string& path : paths()) unlink(path);
    for (const auto& [path, file] : snapshot) put(path, file.first, file.second);
}

std::shared_ptr<FakeFile> FakeDisk::find(const std::string& path) const {
    const auto found = files_.find(path);
    return found == files_.end() ? nullptr : found->second;
}

std::shared_ptr<FakeFile> FakeDisk::create(const std::string& path) {
    auto file = std::make_shared<FakeFile>();
    file->inode = ++inodes_;
    files_[path] = file;
    return file;
}

bool FakeDisk::unlink(const std::string& path) {
    const auto found = files_.find(path);
    if (found == files_.end()) return false;
    found->second->linked = false;
    bytes_used_ -= found->second->allocated;
    found->second->allocated = 0;
    files_.erase(found);
    return true;
}

bool FakeDisk::allocate(FakeFile& file, std::uint64_t bytes) {
    if (bytes <= file.allocated || !file.linked) return true;
    const std::uint64_t more = bytes - file.allocated;
    if (more > bytes_max_ - std::min(bytes_used_, bytes_max_)) return false;
    bytes_used_ += more;
    file.allocated = bytes;
    return true;
}

}  // namespace larder::test
