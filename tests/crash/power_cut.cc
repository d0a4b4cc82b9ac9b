// Keeps what a power cut would leave of a program's files. Loaded into the program (LD_PRELOAD), this library keeps an
// image of every file below $LARDER_POWER_CUT_OF in $LARDER_POWER_CUT. It updates the image only where the kernel
// promises that the disk has the data: at fsync, fdatasync and writes to descriptors with O_DSYNC. A rename counts when
// its directory is synced. A test kills the program and continues with the image.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;

template <typename Function>
Function* real_function(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// The path of the file's image. Empty if no image is kept of the file.
std::string image_of(const std::string& path) {
    const char* const images = std::getenv("LARDER_POWER_CUT");
    const char* const root = std::getenv("LARDER_POWER_CUT_OF");
    if (images == nullptr || root == nullptr || !path.starts_with(std::string(root) + "/")) return {};
    return images + path.substr(std::string(root).size());
}

std::string path_of(int fd) {
    std::array<char, PATH_MAX> path{};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
    return length < 0 ? std::string() : std::string(path.data(), static_cast<std::size_t>(length));
}

std::mutex mutex;
std::vector<std::pair<std::string, std::string>> renames;  // in directories that are not synced yet

// Updates the image of the whole file, or of the names in a directory.
void record_sync(int fd) {
    const int saved_errno = errno;
    const std::string path = path_of(fd);
    const std::lock_guard lock(mutex);
    struct stat status{};
    std::error_code error;
    if (::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)) {
        std::erase_if(renames, [&](const auto& names) {
            if (fs::path(names.second).parent_path() != path) return false;
            real_function<decltype(::rename)>("rename")(image_of(names.first).c_str(), image_of(names.second).c_str());
            return true;
        });
    } else if (const std::string image = image_of(path); !image.empty()) {
        fs::create_directories(fs::path(image).parent_path(), error);
        // If the program is killed meanwhile, the image is the old or the new one.
        const std::string copy = image + ".copy";
        fs::copy_file(path, copy, fs::copy_options::overwrite_existing, error);
        real_function<decltype(::rename)>("rename")(copy.c_str(), image.c_str());
    }
    errno = saved_errno;
}

void record_write(int fd, const void* data, std::size_t bytes, off_t offset) {
    const int saved_errno = errno;
    const int flags = ::fcntl(fd, F_GETFL);
    const std::string image = flags >= 0 && (flags & O_DSYNC) != 0 ? image_of(path_of(fd)) : "";
    if (!image.empty()) {
        const std::lock_guard lock(mutex);
        const int file = ::open(image.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (file >= 0) {
            static_cast<void>(!real_function<decltype(::pwrite)>("pwrite")(file, data, bytes, offset));
            ::close(file);
        }
    }
    errno = saved_errno;
}

}  // namespace

extern "C" {

int fsync(int fd) {
    const int done = real_function<decltype(::fsync)>("fsync")(fd);
    if (done == 0) record_sync(fd);
    return done;
}

int fdatasync(int fd) {
    const int done = real_function<decltype(::fdatasync)>("fdatasync")(fd);
    if (done == 0) record_sync(fd);
    return done;
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
    const ssize_t done = real_function<decltype(::pwrite)>("pwrite")(fd, data, bytes, offset);
    if (done > 0) record_write(fd, data, static_cast<std::size_t>(done), offset);
    return done;
}

ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
    return pwrite(fd, data, bytes, offset);
}

int rename(const char* from, const char* to) noexcept {
    const int done = real_function<decltype(::rename)>("rename")(from, to);
    if (done == 0 && !image_of(from).empty()) {
        const std::lock_guard lock(mutex);
        renames.emplace_back(from, to);
    }
    return done;
}
}
