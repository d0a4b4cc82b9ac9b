// Makes one call of a function fail, once. Loaded into a program (LD_PRELOAD), this library shares the file
// $LARDER_FAIL_FILE with the campaign nth_failure.py, which says in it which call fails: the n-th, or the first whose
// stack never failed before. The processes that the program starts count calls in the same file. Only programs whose
// names begin with "larder" fail.
//
// Functions count in groups, named by $LARDER_FAIL_CALL. Writes and reads count on files only (memfds among them). What
// io_uring reads and writes does not pass through here; with `--io threads` the data plane's reads and writes do.

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

constexpr std::size_t kStacks = 1u << 17;

// The file; nth_failure.py knows its layout.
struct Shared {
    std::atomic<std::uint64_t> at;     // the call that fails; 0: the first whose stack is not in `stacks`
    std::atomic<std::uint64_t> calls;  // so far
    std::atomic<std::uint64_t> fired;  // the number of the call that failed; 0: none has
    std::atomic<std::uint64_t> depth;  // of `stack`
    std::array<std::atomic<std::uint64_t>, 29> stack;  // of the call that failed
    std::array<std::atomic<std::uint64_t>, kStacks> stacks;
};

enum class Call : std::uint8_t { none, malloc, mmap, memfd, event, fork, sync, open, write, read, thread };

constexpr std::array<std::string_view, 11> kNames = {"",     "malloc", "mmap",  "memfd_create", "eventfd", "fork",
                                                     "sync", "open",   "write", "read",         "thread"};

Shared* shared = nullptr;
Call watched = Call::none;
__attribute__((tls_model("initial-exec"))) thread_local bool inside = false;

template <typename Function>
Function* next(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

struct Inside {
    Inside() { inside = true; }
    ~Inside() { inside = false; }
};

// True if the stack is new. It counts as failed from now on.
bool insert_stack(std::uint64_t hash) {
    for (std::size_t i = 0; i < kStacks; ++i) {
        auto& place = shared->stacks[(hash + i) % kStacks];
        std::uint64_t free = 0;
        if (place.compare_exchange_strong(free, hash)) return true;
        if (free == hash) return false;
    }
    return false;
}

bool fails(Call call) {
    if (call != watched || inside || shared->fired.load(std::memory_order_relaxed) != 0) return false;
    const Inside guard;
    const std::uint64_t number = ++shared->calls;
    const std::uint64_t at = shared->at.load(std::memory_order_relaxed);
    if (at != 0 && number != at) return false;
    std::array<void*, 24> frames{};
    const int depth = ::backtrace(frames.data(), static_cast<int>(frames.size()));
    std::uint64_t hash = 0x9e3779b97f4a7c15u;
    for (int i = 0; i < depth && i < 14; ++i) {
        hash = (hash ^ reinterpret_cast<std::uint64_t>(frames[i])) * 0xbf58476d1ce4e5b9u;
        hash ^= hash >> 29;
    }
    if (at == 0 && !insert_stack(hash | 1)) return false;
    std::uint64_t none = 0;
    if (!shared->fired.compare_exchange_strong(none, number)) return false;
    for (int i = 0; i < depth; ++i) shared->stack[i] = reinterpret_cast<std::uint64_t>(frames[i]);
    shared->depth = static_cast<std::uint64_t>(depth);
    return true;
}

bool is_file(int fd) {
    struct stat status{};
    const int saved_errno = errno;
    const bool is = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    errno = saved_errno;
    return is;
}

template <typename Value>
Value refuse(int why, Value value) {
    errno = why;
    return value;
}

__attribute__((constructor)) void begin() {
    const Inside guard;
    const char* const file = std::getenv("LARDER_FAIL_FILE");
    const char* const name = std::getenv("LARDER_FAIL_CALL");
    std::array<char, 4096> program{};
    if (file == nullptr || name == nullptr) return;
    if (::readlink("/proc/self/exe", program.data(), program.size() - 1) <= 0) return;
    const std::string_view path = program.data();
    if (!path.substr(path.rfind('/') + 1).starts_with("larder")) return;
    std::array<void*, 2> frames{};
    ::backtrace(frames.data(), 2);  // loads the unwinder, which allocates
    const int fd = next<decltype(::open)>("open")(file, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void* const data =
        next<decltype(::mmap)>("mmap")(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (data == MAP_FAILED) return;
    shared = static_cast<Shared*>(data);
    for (std::size_t i = 1; i < kNames.size(); ++i) {
        if (name == kNames[i]) watched = static_cast<Call>(i);
    }
}

}  // namespace

extern "C" {

void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) noexcept {
    return fails(Call::malloc) ? refuse<void*>(ENOMEM, nullptr) : __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) noexcept {
    return fails(Call::malloc) ? refuse<void*>(ENOMEM, nullptr) : __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) noexcept {
    return fails(Call::malloc) ? refuse<void*>(ENOMEM, nullptr) : __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
    return fails(Call::malloc) ? refuse<void*>(ENOMEM, nullptr) : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** place, size_t alignment, size_t bytes) noexcept {
    if (fails(Call::malloc)) return ENOMEM;
    *place = __libc_memalign(alignment, bytes);
    return *place == nullptr ? ENOMEM : 0;
}

void* mmap(void* address, size_t bytes, int access, int flags, int fd, off_t offset) noexcept {
    if (fails(Call::mmap)) return refuse(ENOMEM, MAP_FAILED);
    return next<decltype(::mmap)>("mmap")(address, bytes, access, flags, fd, offset);
}
void* mmap64(void* address, size_t bytes, int access, int flags, int fd, off64_t offset) noexcept {
    return mmap(address, bytes, access, flags, fd, offset);
}
int memfd_create(const char* name, unsigned flags) noexcept {
    if (fails(Call::memfd)) return refuse(ENFILE, -1);
    return next<decltype(::memfd_create)>("memfd_create")(name, flags);
}
int eventfd(unsigned count, int flags) noexcept {
    if (fails(Call::event)) return refuse(EMFILE, -1);
    return next<decltype(::eventfd)>("eventfd")(count, flags);
}
pid_t fork() noexcept {
    if (fails(Call::fork)) return refuse(EAGAIN, -1);
    return next<decltype(::fork)>("fork")();
}
int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment) {
    if (fails(Call::fork)) return EAGAIN;
    return next<decltype(::posix_spawn)>("posix_spawn")(pid, path, actions, attributes, arguments, environment);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) noexcept {
    if (fails(Call::thread)) return EAGAIN;
    return next<decltype(::pthread_create)>("pthread_create")(thread, attributes, run, argument);
}

int fsync(int fd) {
    return fails(Call::sync) ? refuse(EIO, -1) : next<decltype(::fsync)>("fsync")(fd);
}
int fdatasync(int fd) {
    return fails(Call::sync) ? refuse(EIO, -1) : next<decltype(::fdatasync)>("fdatasync")(fd);
}

int open(const char* path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return fails(Call::open) ? refuse(EMFILE, -1) : next<decltype(::open)>("open")(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return fails(Call::open) ? refuse(EMFILE, -1) : next<decltype(::open)>("open64")(path, flags, mode);
}
int openat(int directory, const char* path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return fails(Call::open) ? refuse(EMFILE, -1) : next<decltype(::openat)>("openat")(directory, path, flags, mode);
}
long syscall(long number, ...) noexcept {
    va_list rest;
    va_start(rest, number);
    std::array<long, 6> arguments{};
    for (long& argument : arguments) argument = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_openat2 && fails(Call::open)) return refuse(EMFILE, -1L);
    return next<decltype(::syscall)>("syscall")(number, arguments[0], arguments[1], arguments[2], arguments[3],
                                                arguments[4], arguments[5]);
}
int socket(int domain, int type, int protocol) noexcept {
    return fails(Call::open) ? refuse(EMFILE, -1) : next<decltype(::socket)>("socket")(domain, type, protocol);
}
int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
    return fails(Call::open) ? refuse(EMFILE, -1) : next<decltype(::accept4)>("accept4")(fd, address, length, flags);
}
int pipe2(int* ends, int flags) noexcept {
    return fails(Call::open) ? refuse(EMFILE, -1) : next<decltype(::pipe2)>("pipe2")(ends, flags);
}
int dup(int fd) noexcept {
    return fails(Call::open) ? refuse(EMFILE, -1) : next<decltype(::dup)>("dup")(fd);
}
int epoll_create1(int flags) noexcept {
    return fails(Call::open) ? refuse(EMFILE, -1) : next<decltype(::epoll_create1)>("epoll_create1")(flags);
}

ssize_t write(int fd, const void* data, size_t bytes) {
    if (watched == Call::write && is_file(fd) && fails(Call::write)) return refuse(ENOSPC, ssize_t{-1});
    return next<decltype(::write)>("write")(fd, data, bytes);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
    if (watched == Call::write && is_file(fd) && fails(Call::write)) return refuse(ENOSPC, ssize_t{-1});
    return next<decltype(::pwrite)>("pwrite")(fd, data, bytes, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
    return pwrite(fd, data, bytes, offset);
}
ssize_t writev(int fd, const iovec* parts, int count) {
    if (watched == Call::write && is_file(fd) && fails(Call::write)) return refuse(ENOSPC, ssize_t{-1});
    return next<decltype(::writev)>("writev")(fd, parts, count);
}
ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
    if (watched == Call::write && is_file(fd) && fails(Call::write)) return refuse(ENOSPC, ssize_t{-1});
    return next<decltype(::pwritev)>("pwritev")(fd, parts, count, offset);
}
int ftruncate(int fd, off_t bytes) noexcept {
    return fails(Call::write) ? refuse(ENOSPC, -1) : next<decltype(::ftruncate)>("ftruncate")(fd, bytes);
}
int ftruncate64(int fd, off64_t bytes) noexcept {
    return ftruncate(fd, bytes);
}
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
    return fails(Call::write) ? refuse(ENOSPC, -1) : next<decltype(::fallocate)>("fallocate")(fd, mode, offset, bytes);
}
int posix_fallocate(int fd, off_t offset, off_t bytes) {
    return fails(Call::write) ? ENOSPC : next<decltype(::posix_fallocate)>("posix_fallocate")(fd, offset, bytes);
}

ssize_t read(int fd, void* data, size_t bytes) {
    if (watched == Call::read && is_file(fd) && fails(Call::read)) return refuse(EIO, ssize_t{-1});
    return next<decltype(::read)>("read")(fd, data, bytes);
}
ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
    if (watched == Call::read && is_file(fd) && fails(Call::read)) return refuse(EIO, ssize_t{-1});
    return next<decltype(::pread)>("pread")(fd, data, bytes, offset);
}
ssize_t pread64(int fd, void* data, size_t bytes, off64_t offset) {
    return pread(fd, data, bytes, offset);
}
ssize_t preadv(int fd, const iovec* parts, int count, off_t offset) {
    if (watched == Call::read && is_file(fd) && fails(Call::read)) return refuse(EIO, ssize_t{-1});
    return next<decltype(::preadv)>("preadv")(fd, parts, count, offset);
}
}
