// Keeps what a power cut would leave of a program's files. Loaded into the program (LD_PRELOAD), this library keeps an
// image of every file below $LARDER_POWER_CUT_OF in $LARDER_POWER_CUT. It updates the image only where the kernel
// promises that the disk has the data: at fsync, fdatasync and writes to descriptors with O_DSYNC. A rename counts when
// its directory is synced. A test kills the program and continues with the image.
//
// Optional: $LARDER_POWER_CUT_COUNTERS names a file of two 64-bit counters that all processes share. At flush number
// $LARDER_POWER_CUT_AT the power fails: the flush is not done, the disk has some of the writes since the flush before
// ($LARDER_POWER_CUT_SEED chooses which), and no image changes any more. The process is killed, and so is each other
// one at its next flush. Renames are then also noted in the file with ".renames" after its name.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
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

// The file of counters, which all processes share.
struct Counters {
    std::uint64_t flushes;
    std::uint64_t is_cut;
};

Counters* open_counters() {
    const char* const path = std::getenv("LARDER_POWER_CUT_COUNTERS");
    const int file = path == nullptr ? -1 : ::open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return nullptr;
    void* const mapped = ::mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    return mapped == MAP_FAILED ? nullptr : static_cast<Counters*>(mapped);
}

Counters* counters() {
    static Counters* const mapped = open_counters();
    return mapped;
}

std::uint64_t number_of(const char* variable) {
    const char* const text = std::getenv(variable);
    return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

bool is_cut() {
    return counters() != nullptr && std::atomic_ref(counters()->is_cut).load() != 0;
}

std::string read_file(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::mutex mutex;
std::vector<std::pair<std::string, std::string>> renames;  // of this process, in directories that are not synced yet

// Appends a line about a rename or a synced directory to the file that all processes share.
void note_rename(const std::string& line) {
    const char* const path = std::getenv("LARDER_POWER_CUT_COUNTERS");
    if (path == nullptr) return;
    const int file = ::open((std::string(path) + ".renames").c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return;
    static_cast<void>(!::write(file, line.data(), line.size()));
    ::close(file);
}

// Returns the renames of all processes that may be lost, in order.
std::vector<std::pair<std::string, std::string>> pending_renames() {
    std::vector<std::pair<std::string, std::string>> pending;
    std::istringstream lines(read_file(std::string(std::getenv("LARDER_POWER_CUT_COUNTERS")) + ".renames"));
    for (std::string from, to; std::getline(lines, from, '\t') && std::getline(lines, to);) {
        if (!from.empty()) {
            pending.emplace_back(from, to);
        } else {
            std::erase_if(pending, [&](const auto& names) { return fs::path(names.second).parent_path() == to; });
        }
    }
    return pending;
}

// Lets one process at a time change images.
class ImagesLock {
public:
    ImagesLock() {
        const char* const path = std::getenv("LARDER_POWER_CUT_COUNTERS");
        file_ = path == nullptr ? -1 : ::open(path, O_RDWR | O_CLOEXEC);
        if (file_ >= 0) ::flock(file_, LOCK_EX);
    }
    ImagesLock(const ImagesLock&) = delete;
    ImagesLock& operator=(const ImagesLock&) = delete;
    ~ImagesLock() {
        if (file_ >= 0) ::close(file_);
    }

private:
    std::lock_guard<std::mutex> threads_{mutex};
    int file_;
};

// Puts some of the unflushed writes into the images, by sectors: a disk may write its volatile cache in any order.
void tear_images(std::uint64_t seed) {
    constexpr std::size_t kSector_bytes = 512;
    std::mt19937_64 draw(seed);
    const auto coin = [&] { return draw() % 2 == 0; };
    std::set<std::string> renamed;  // their contents are flushed, or not, under their names before
    for (const auto& [from, to] : pending_renames()) {
        std::error_code error;
        renamed.insert(to);
        if (coin()) fs::rename(image_of(from), image_of(to), error);
    }
    const char* const root = std::getenv("LARDER_POWER_CUT_OF");
    std::error_code error;
    for (auto entry = fs::recursive_directory_iterator(root, error); entry != fs::recursive_directory_iterator();
         entry.increment(error)) {
        if (error) break;
        if (!entry->is_regular_file(error) || renamed.contains(entry->path().string())) continue;
        const fs::path image = image_of(entry->path().string());
        const bool is_new = !fs::exists(image, error);
        if (is_new && coin()) continue;
        const std::string now = read_file(entry->path());
        std::string left = is_new ? std::string() : read_file(image);
        if (now == left && !is_new) continue;
        if (coin()) left.resize(now.size());
        // Most files get some of their sectors, some get all or none.
        const std::uint64_t share = draw() % 5;
        for (std::size_t at = 0; at < std::min(now.size(), left.size()); at += kSector_bytes) {
            const std::size_t bytes = std::min(kSector_bytes, std::min(now.size(), left.size()) - at);
            if (draw() % 4 < share) left.replace(at, bytes, now, at, bytes);
        }
        fs::create_directories(image.parent_path(), error);
        std::ofstream(image, std::ios::binary) << left;
    }
}

// Call before each flush, under an ImagesLock. Does not return if the power is off.
void count_flush() {
    if (counters() == nullptr) return;
    if (!is_cut()) {
        if (++std::atomic_ref(counters()->flushes) != number_of("LARDER_POWER_CUT_AT")) return;
        tear_images(number_of("LARDER_POWER_CUT_SEED"));
        std::atomic_ref(counters()->is_cut).store(1);
    }
    ::kill(::getpid(), SIGKILL);
    ::pause();
}

// Updates the image of the whole file, or of the names in a directory.
void record_sync(int fd) {
    const int saved_errno = errno;
    const std::string path = path_of(fd);
    struct stat status{};
    std::error_code error;
    if (::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)) {
        note_rename("\t" + path + "\n");
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

bool flushes_each_write(int fd) {
    const int saved_errno = errno;
    const int flags = ::fcntl(fd, F_GETFL);
    errno = saved_errno;
    return flags >= 0 && (flags & O_DSYNC) != 0;
}

void record_write(int fd, const void* data, std::size_t bytes, off_t offset) {
    const int saved_errno = errno;
    const std::string image = image_of(path_of(fd));
    if (!image.empty()) {
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
    const ImagesLock lock;
    count_flush();
    const int done = real_function<decltype(::fsync)>("fsync")(fd);
    if (done == 0) record_sync(fd);
    return done;
}

int fdatasync(int fd) {
    const ImagesLock lock;
    count_flush();
    const int done = real_function<decltype(::fdatasync)>("fdatasync")(fd);
    if (done == 0) record_sync(fd);
    return done;
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
    if (!flushes_each_write(fd)) return real_function<decltype(::pwrite)>("pwrite")(fd, data, bytes, offset);
    const ImagesLock lock;
    count_flush();
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
        note_rename(std::string(from) + "\t" + to + "\n");
    }
    return done;
}
}
