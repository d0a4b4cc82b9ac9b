#include "cache/store/disk_probe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/file.h"

namespace larder::cache {
namespace {

constexpr std::uint32_t kAlignmentMin = 512;
constexpr std::uint32_t kAlignmentMax = 4096;

Result<FileDescriptor> open_unnamed_file(const std::string& directory, int flags) {
    auto file = open_file(directory, O_TMPFILE | O_RDWR | flags, 0600);
    if (file) return file;
    // Not every file system supports O_TMPFILE.
    const std::string path = directory + "/.probe";
    file = open_file(path, O_CREAT | O_RDWR | O_TRUNC | flags, 0600);
    ::unlink(path.c_str());
    return file;
}

}  // namespace

Result<DiskProbe> probe_disk(const std::string& directory) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) return fail_errno(error.value(), "make segment directory " + directory);

    auto file = open_unnamed_file(directory, O_DIRECT);
    if (!file) {
        if (file.error().system_errno != EINVAL) return std::unexpected(file.error());
        file = open_unnamed_file(directory, 0);
        if (!file) return std::unexpected(file.error());
        return DiskProbe{.alignment = kAlignmentMin, .direct = false};
    }
    struct statx status{};
    if (::statx(file->get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0 ||
        (status.stx_mask & STATX_DIOALIGN) == 0) {
        return DiskProbe{.alignment = kAlignmentMax, .direct = true};
    }
    if (status.stx_dio_offset_align == 0 || status.stx_dio_offset_align > kAlignmentMax ||
        status.stx_dio_mem_align > kAlignmentMax) {
        return DiskProbe{.alignment = kAlignmentMin, .direct = false};
    }
    return DiskProbe{.alignment = std::max(kAlignmentMin, std::bit_ceil(status.stx_dio_offset_align)), .direct = true};
}

}  // namespace larder::cache
