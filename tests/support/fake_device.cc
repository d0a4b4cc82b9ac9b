#include "tests/support/fake_device.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "base/assert.h"
#include "base/hash.h"

namespace larder::test {

namespace {

constexpr std::uint64_t kSectorBytes = 512;
constexpr std::int64_t kNever_ns = std::numeric_limits<std::int64_t>::max();

bool is_transfer(FakeAction action) {
    return action == FakeAction::read || action == FakeAction::write;
}

}  // namespace

FakeDevice::FakeDevice(FakeDisk& disk, ManualClock& clock, const FakeDeviceOptions& options)
    : disk_(disk), clock_(clock), options_(options) {}

FakeDevice::~FakeDevice() {
    stop();
}

std::uint64_t FakeDevice::random() {
    return mix64(options_.seed ^ mix64(++randoms_));
}

FakeDevice::Pending FakeDevice::pending_on_file(FakeAction action, int fd) const {
    Pending pending{.action = action, .fd = fd};
    if (const auto found = open_.find(fd); found != open_.end()) pending.target = found->second;
    return pending;
}

void FakeDevice::start(Pending pending, cache::Operation& operation) {
    LARDER_ASSERT(!stopped_ && operation.done != nullptr && operation.device_state == nullptr);
    operation.device_state = this;
    pending.operation = &operation;
    if (pending.action == FakeAction::watch) {
        pending.due_ns = kNever_ns;
    } else if (pending.action != FakeAction::timer) {
        pending.due_ns = clock_.now_ns() + options_.latency_ns;
        if (options_.jitter_ns > 0)
            pending.due_ns += static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(options_.jitter_ns + 1));
    }
    ++counts_[static_cast<std::size_t>(pending.action)];
    const std::pair key(pending.due_ns, ++sequence_);
    pending_.emplace(key, std::move(pending));
}

void FakeDevice::open(const char* path, int flags, unsigned, cache::Operation& operation) {
    start({.action = FakeAction::open, .flags = flags, .target = {nullptr, path, flags}}, operation);
}

void FakeDevice::open_at(int, const char* path, LinkRule, int flags, cache::Operation& operation) {
    open(path, flags, 0, operation);
}

void FakeDevice::stat(int fd, struct statx& into, cache::Operation& operation) {
    Pending pending = pending_on_file(FakeAction::stat, fd);
    pending.memory = reinterpret_cast<std::byte*>(&into);
    start(std::move(pending), operation);
}

void FakeDevice::read(int fd, std::span<std::byte> into, std::uint64_t offset, cache::Operation& operation) {
    Pending pending = pending_on_file(FakeAction::read, fd);
    pending.memory = into.data();
    pending.bytes = into.size();
    pending.offset = offset;
    start(std::move(pending), operation);
}

void FakeDevice::write(int fd, std::span<const std::byte> from, std::uint64_t offset, cache::Operation& operation) {
    Pending pending = pending_on_file(FakeAction::write, fd);
    pending.memory = const_cast<std::byte*>(from.data());
    pending.bytes = from.size();
    pending.offset = offset;
    start(std::move(pending), operation);
}

void FakeDevice::allocate(int fd, std::uint64_t bytes, cache::Operation& operation) {
    Pending pending = pending_on_file(FakeAction::allocate, fd);
    pending.bytes = bytes;
    start(std::move(pending), operation);
}

void FakeDevice::unlink(const char* path, cache::Operation& operation) {
    start({.action = FakeAction::unlink, .target = {nullptr, path, 0}}, operation);
}

void FakeDevice::close(int fd) {
    open_.erase(fd);
    ::close(fd);
}

void FakeDevice::watch(int fd, cache::Operation& operation) {
    start({.action = FakeAction::watch, .fd = fd}, operation);
}

void FakeDevice::start_timer(std::int64_t delay_ns, cache::Operation& operation) {
    start({.action = FakeAction::timer, .due_ns = clock_.now_ns() + delay_ns}, operation);
}

void FakeDevice::cancel(cache::Operation& operation) {
    for (const auto& [key, pending] : pending_) {
        if (pending.operation != &operation) continue;
        if (!pending.decided) decide(key, -ECANCELED);
        return;
    }
}

// Makes the operation due now, with this result.
void FakeDevice::decide(std::pair<std::int64_t, std::uint64_t> key, std::int32_t result) {
    auto node = pending_.extract(key);
    node.key().first = node.mapped().due_ns = clock_.now_ns();
    node.mapped().result = result;
    node.mapped().decided = true;
    pending_.insert(std::move(node));
}

bool FakeDevice::stop() {
    pending_.clear();
    stopped_ = true;
    return true;
}

void FakeDevice::crash() {
    for (const auto& [key, pending] : pending_) {
        if (pending.action != FakeAction::write || pending.target.file == nullptr || pending.decided) continue;
        const std::uint64_t sectors = random() % (pending.bytes / kSectorBytes + 2);
        const std::size_t landed = std::min<std::uint64_t>(sectors * kSectorBytes, pending.bytes);
        if (disk_.allocate(*pending.target.file, pending.offset + landed))
            pending.target.file->write({pending.memory, landed}, pending.offset);
    }
    crashed_ = true;
}

std::int64_t FakeDevice::next_completion_ns() const {
    return pending_.empty() ? kNever_ns : pending_.begin()->first.first;
}

void FakeDevice::wait(std::int64_t deadline_ns) {
    LARDER_ASSERT(!waiting_ && !stopped_);
    waiting_ = true;
    poll_watches();
    const std::int64_t next_ns = crashed_ ? kNever_ns : next_completion_ns();
    const std::int64_t until_ns = std::min(next_ns, deadline_ns);
    if (until_ns != kNever_ns && until_ns > clock_.now_ns()) clock_.set_ns(until_ns);

    // Operations that `done` starts complete in the next wait, however short their latency.
    const std::uint64_t last_sequence = sequence_;
    for (auto at = pending_.begin(); !crashed_ && at != pending_.end() && at->first.first <= clock_.now_ns();) {
        const std::pair key = at->first;
        if (key.second > last_sequence) {
            ++at;
            continue;
        }
        const Pending pending = at->second;
        const std::int32_t result = pending.decided ? pending.result : perform(pending);
        if (crashed_) break;
        trace_hash_ = mix64(trace_hash_ ^ static_cast<std::uint64_t>(key.first));
        trace_hash_ = mix64(trace_hash_ ^ key.second << 8 ^ static_cast<std::uint64_t>(pending.action));
        if (pending.action != FakeAction::open) trace_hash_ = mix64(trace_hash_ ^ static_cast<std::uint32_t>(result));
        pending_.erase(at);
        pending.operation->device_state = nullptr;
        pending.operation->done(*pending.operation, result);
        at = pending_.begin();  // `done` may have cancelled the next operation
    }
    waiting_ = false;
}

void FakeDevice::poll_watches() {
    for (auto at = pending_.lower_bound({kNever_ns, 0}); at != pending_.end();) {
        const auto [key, fd] = std::pair(at->first, at->second.fd);
        ++at;
        pollfd polled{.fd = fd, .events = POLLIN, .revents = 0};
        if (::poll(&polled, 1, 0) > 0) decide(key, (polled.revents & POLLNVAL) != 0 ? -EBADF : polled.revents);
    }
}

const Fault* FakeDevice::take_fault(const Pending& pending) {
    for (Fault& fault : faults_) {
        if (fault.action != pending.action || fault.times == 0) continue;
        if (pending.target.path.find(fault.path_part) == std::string::npos) continue;
        if (fault.skip > 0) {
            --fault.skip;
            continue;
        }
        --fault.times;
        return &fault;
    }
    return nullptr;
}

std::int32_t FakeDevice::perform(const Pending& pending) {
    const Fault* fault = take_fault(pending);
    if (fault != nullptr && fault->kind == Fault::Kind::crash) {
        crash();
        return 0;
    }
    if (fault != nullptr && (fault->kind == Fault::Kind::fail || !is_transfer(pending.action))) return -fault->error;
    switch (pending.action) {
        case FakeAction::open: return perform_open(pending);
        case FakeAction::stat: return perform_stat(pending);
        case FakeAction::read:
        case FakeAction::write: return transfer(pending, fault);
        case FakeAction::allocate:
            if (pending.target.file == nullptr) return -EBADF;
            if (!disk_.allocate(*pending.target.file, pending.bytes)) return -ENOSPC;
            if (pending.bytes > pending.target.file->bytes) {
                if (::ftruncate(pending.target.file->memory_fd.get(), static_cast<off_t>(pending.bytes)) != 0)
                    return -errno;
                pending.target.file->bytes = pending.bytes;
            }
            return 0;
        case FakeAction::unlink: return disk_.unlink(pending.target.path) ? 0 : -ENOENT;
        case FakeAction::watch:
        case FakeAction::timer: return 0;
    }
    return -EINVAL;
}

std::int32_t FakeDevice::perform_open(const Pending& pending) {
    const int flags = pending.flags;
    auto file = disk_.find(pending.target.path);
    if (file != nullptr && (flags & O_CREAT) != 0 && (flags & O_EXCL) != 0) return -EEXIST;
    if (file == nullptr) {
        if ((flags & O_CREAT) == 0) return -ENOENT;
        file = disk_.create(pending.target.path);
        file->mtime_ns = clock_.now_ns();
    } else if ((flags & O_TRUNC) != 0) {
        disk_.truncate(pending.target.path, 0);
    }
    // A duplicate, so that closing it, through the device or by close(2), frees the descriptor's number.
    const int fd = ::fcntl(file->memory_fd.get(), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return -errno;
    open_[fd] = {std::move(file), pending.target.path, flags};
    return fd;
}

std::int32_t FakeDevice::perform_stat(const Pending& pending) const {
    const FakeFile* file = pending.target.file.get();
    if (file == nullptr) return -EBADF;
    struct statx stat{};
    stat.stx_mask = STATX_BASIC_STATS | STATX_DIOALIGN;
    stat.stx_blksize = 4096;
    stat.stx_nlink = file->linked ? 1 : 0;
    stat.stx_mode = S_IFREG | 0644;
    stat.stx_ino = file->inode;
    stat.stx_size = file->bytes;
    stat.stx_blocks = file->allocated / 512;
    stat.stx_mtime.tv_sec = file->mtime_ns / 1'000'000'000;
    stat.stx_mtime.tv_nsec = static_cast<std::uint32_t>(file->mtime_ns % 1'000'000'000);
    stat.stx_dio_mem_align = kSectorBytes;
    stat.stx_dio_offset_align = kSectorBytes;
    *reinterpret_cast<struct statx*>(pending.memory) = stat;
    return 0;
}

std::int32_t FakeDevice::transfer(const Pending& pending, const Fault* fault) {
    FakeFile* file = pending.target.file.get();
    if (file == nullptr) return -EBADF;
    const int access = pending.target.flags & O_ACCMODE;
    const bool writes = pending.action == FakeAction::write;
    if (access == (writes ? O_RDONLY : O_WRONLY)) return -EBADF;
    const auto address = reinterpret_cast<std::uintptr_t>(pending.memory);
    if ((pending.target.flags & O_DIRECT) != 0 && (address | pending.offset | pending.bytes) % kSectorBytes != 0)
        return -EINVAL;

    std::size_t bytes = pending.bytes;
    const bool cut = fault != nullptr && (fault->kind == Fault::Kind::short_count || fault->kind == Fault::Kind::torn);
    if (cut) bytes = bytes / 2 / kSectorBytes * kSectorBytes;
    if (cut && bytes == 0) bytes = pending.bytes / 2;
    if (writes && !disk_.allocate(*file, pending.offset + bytes)) return -ENOSPC;

    const std::int32_t result = writes ? file->write({pending.memory, bytes}, pending.offset)
                                       : file->read({pending.memory, bytes}, pending.offset);
    if (writes) file->mtime_ns = clock_.now_ns();
    if (fault != nullptr && fault->kind == Fault::Kind::flip_bit && result > 0) {
        const std::uint64_t bit = random() % (static_cast<std::uint64_t>(result) * 8);
        const std::byte mask = std::byte{1} << (bit % 8);
        if (writes) {
            const std::byte wrong = pending.memory[bit / 8] ^ mask;
            file->write({&wrong, 1}, pending.offset + bit / 8);
        } else {
            pending.memory[bit / 8] ^= mask;
        }
    }
    if (fault != nullptr && fault->kind == Fault::Kind::torn) return -fault->error;
    return result;
}

}  // namespace larder::test
