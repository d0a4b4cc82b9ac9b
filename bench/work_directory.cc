#include "bench/work_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/file.h"
#include "base/hash.h"

namespace larder::bench {

Result<WorkDirectory> WorkDirectory::make(const std::string& parent) {
    const char* temporary = std::getenv("TMPDIR");
    std::string path = (!parent.empty() ? parent : temporary != nullptr ? temporary : "/tmp") + "/larder-bench-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) return fail_errno(errno, "make directory " + path);
    return WorkDirectory(path);
}

WorkDirectory::~WorkDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

Result<FileSet> write_files(const std::string& directory, std::uint32_t count, std::uint64_t bytes_each) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) return fail_errno(error.value(), "make directory " + directory);
    std::vector<std::uint64_t> words((bytes_each + 7) / 8);
    std::uint64_t state = bytes_each;
    for (std::uint32_t i = 0; i < count; ++i) {
        for (std::uint64_t& word : words) word = mix64(++state);
        char name[32];
        std::snprintf(name, sizeof name, "/%06u.bin", i);
        auto file = open_file(directory + name, O_WRONLY | O_CREAT | O_TRUNC);
        if (!file) return std::unexpected(file.error());
        const auto* bytes = reinterpret_cast<const char*>(words.data());
        for (std::uint64_t done = 0; done < bytes_each;) {
            const ssize_t written = ::write(file->get(), bytes + done, bytes_each - done);
            if (written <= 0) return fail_errno(written < 0 ? errno : EIO, "write " + directory + name);
            done += static_cast<std::uint64_t>(written);
        }
    }
    return FileSet{directory, count, bytes_each};
}

}  // namespace larder::bench
