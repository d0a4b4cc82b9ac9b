// Sets the wall clock of one program apart from the machine's. Loaded into the program (LD_PRELOAD), this library adds
// the nanoseconds in the file $LARDER_CLOCK_FILE, a signed number of 8 bytes, to what the program reads. A campaign may
// change the number meanwhile. The clocks that measure durations are left alone, and so is what the kernel waits for.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

std::atomic<std::int64_t>* offset_ns = nullptr;

__attribute__((constructor)) void map_offset() {
    const char* path = std::getenv("LARDER_CLOCK_FILE");
    if (path == nullptr) return;
    const int file = ::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) std::abort();
    void* mapped = ::mmap(nullptr, sizeof(*offset_ns), PROT_READ, MAP_SHARED, file, 0);
    ::close(file);
    if (mapped == MAP_FAILED) std::abort();
    offset_ns = static_cast<std::atomic<std::int64_t>*>(mapped);
}

int read_clock(clockid_t clock, timespec* time) {
    static const auto real = reinterpret_cast<int (*)(clockid_t, timespec*)>(::dlsym(RTLD_NEXT, "clock_gettime"));
    const int failed = real(clock, time);
    if (failed != 0 || offset_ns == nullptr || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    const std::int64_t now_ns = (time->tv_sec * kSecond) + time->tv_nsec + offset_ns->load(std::memory_order_relaxed);
    time->tv_sec = now_ns / kSecond;
    time->tv_nsec = now_ns % kSecond;
    return 0;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
    return read_clock(clock, time);
}

int gettimeofday(timeval* time, void* /*zone*/) noexcept {
    timespec now{};
    read_clock(CLOCK_REALTIME, &now);
    *time = {.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

std::time_t time(std::time_t* seconds) noexcept {
    timespec now{};
    read_clock(CLOCK_REALTIME, &now);
    if (seconds != nullptr) *seconds = now.tv_sec;
    return now.tv_sec;
}

}  // extern "C"
