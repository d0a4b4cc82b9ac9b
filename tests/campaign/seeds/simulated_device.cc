#include "tests/campaign/seeds/simulated_device.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/assert.h"
#include "base/file.h"

namespace larder::campaign {
namespace {

constexpr std::size_t kSectorBytes = 512;

std::int32_t result_of(ssize_t returned) {
    return returned < 0 ? -errno : static_cast<std::int32_t>(returned);
}

}  // namespace

SimulatedDevice::Pending& SimulatedDevice::start(Action action, cache::Operation& operation, std::int64_t due_ns) {
    if (stopped_) return ignored_ = {};
    LARDER_ASSERT(operation.done != nullptr && operation.device_state == nullptr);
    auto pending = std::make_unique<Pending>();
    pending->key = {due_ns, ++sequence_};
    pending->action = action;
    pending->operation = &operation;
    operation.device_state = pending.get();
    return *(pending_[pending->key] = std::move(pending));
}

SimulatedDevice::Pending& SimulatedDevice::start_on_disk(Action action, cache::Operation& operation) {
    return start(action, operation, clock_.now_ns() + random_.between(50'000, faults_.delay_max_ns));
}

void SimulatedDevice::open(const char* path, int flags, unsigned, cache::Operation& operation) {
    Pending& pending = start_on_disk(Action::open, operation);
    pending.path = path;
    pending.flags = flags;
}

void SimulatedDevice::open_at(int, const char* path, LinkRule, int flags, cache::Operation& operation) {
    open(path, flags, 0, operation);
}

void SimulatedDevice::stat(int fd, struct statx& into, cache::Operation& operation) {
    Pending& pending = start_on_disk(Action::stat, operation);
    pending.fd = fd;
    pending.memory = reinterpret_cast<std::byte*>(&into);
}

void SimulatedDevice::read(int fd, std::span<std::byte> into, std::uint64_t offset, cache::Operation& operation) {
    Pending& pending = start_on_disk(Action::read, operation);
    pending.fd = fd;
    pending.memory = into.data();
    pending.bytes = into.size();
    pending.offset = offset;
}

void SimulatedDevice::write(int fd, std::span<const std::byte> from, std::uint64_t offset,
                            cache::Operation& operation) {
    Pending& pending = start_on_disk(Action::write, operation);
    pending.fd = fd;
    pending.memory = const_cast<std::byte*>(from.data());
    pending.bytes = from.size();
    pending.offset = offset;
}

void SimulatedDevice::allocate(int fd, std::uint64_t bytes, cache::Operation& operation) {
    Pending& pending = start_on_disk(Action::allocate, operation);
    pending.fd = fd;
    pending.bytes = bytes;
}

void SimulatedDevice::unlink(const char* path, cache::Operation& operation) {
    start_on_disk(Action::unlink, operation).path = path;
}

void SimulatedDevice::close(int fd) {
    paths_.erase(fd);
    signalled_.erase(fd);
    ::close(fd);
}

void SimulatedDevice::watch(int fd, cache::Operation& operation) {
    Pending& pending = start(Action::watch, operation, kNever_ns);
    pending.fd = fd;
    if (signalled_.erase(fd) > 0) decide(pending, 1);
}

void SimulatedDevice::start_timer(std::int64_t delay_ns, cache::Operation& operation) {
    start(Action::timer, operation, clock_.now_ns() + delay_ns);
}

void SimulatedDevice::start_open_ended(cache::Operation& operation) {
    start(Action::timer, operation, kNever_ns);
}

void SimulatedDevice::finish(cache::Operation& operation, std::int32_t result) {
    if (stopped_) return;
    decide(*static_cast<Pending*>(operation.device_state), result);
}

void SimulatedDevice::signal(int fd) {
    for (auto at = pending_.lower_bound({kNever_ns, 0}); at != pending_.end(); ++at) {
        if (at->second->action != Action::watch || at->second->fd != fd) continue;
        decide(*at->second, 1);
        return;
    }
    signalled_.insert(fd);
}

void SimulatedDevice::cancel(cache::Operation& operation) {
    if (operation.device_state == nullptr || stopped_) return;
    Pending& pending = *static_cast<Pending*>(operation.device_state);
    if (!pending.decided) decide(pending, -ECANCELED);
}

// Makes the operation due now, with this result.
void SimulatedDevice::decide(Pending& pending, std::int32_t result) {
    if (stopped_) return;
    auto node = pending_.extract(pending.key);
    pending.key.first = clock_.now_ns();
    pending.result = result;
    pending.decided = true;
    node.key() = pending.key;
    pending_.insert(std::move(node));
}

bool SimulatedDevice::stop() {
    pending_.clear();
    stopped_ = true;
    return true;
}

std::int64_t SimulatedDevice::wake_at_ns() const {
    const std::int64_t due_ns = pending_.empty() ? kNever_ns : pending_.begin()->first.first;
    return std::min(due_ns, deadline_ns_);
}

void SimulatedDevice::wait(std::int64_t deadline_ns) {
    deadline_ns_ = deadline_ns;
    const std::int64_t now_ns = clock_.now_ns();
    const std::uint64_t last_sequence = sequence_;
    for (auto at = pending_.begin(); at != pending_.end() && at->first.first <= now_ns;) {
        // Operations that `done` starts complete in the next wait.
        if (at->first.second > last_sequence) {
            ++at;
            continue;
        }
        const std::unique_ptr<Pending> pending = std::move(at->second);
        pending_.erase(at);
        const std::int32_t result = pending->decided ? pending->result : perform(*pending);
        pending->operation->device_state = nullptr;
        pending->operation->done(*pending->operation, result);
        at = pending_.begin();  // `done` may have cancelled the next operation
    }
}

std::int32_t SimulatedDevice::perform(Pending& pending) {
    switch (pending.action) {
        case Action::open: return perform_open(pending);
        case Action::stat:
            return result_of(::statx(pending.fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_DIOALIGN,
                                     reinterpret_cast<struct statx*>(pending.memory)));
        case Action::read:
        case Action::write: return transfer(pending);
        case Action::allocate:
            if (random_.chance(faults_.no_space)) return -ENOSPC;
            return -::posix_fallocate(pending.fd, 0, static_cast<off_t>(pending.bytes));
        case Action::unlink: return result_of(::unlink(pending.path.c_str()));
        case Action::watch:
        case Action::timer: return 0;
    }
    return -EINVAL;
}

std::int32_t SimulatedDevice::perform_open(const Pending& pending) {
    if (random_.chance(faults_.write_error)) return -EIO;
    const int fd = ::open(pending.path.c_str(), pending.flags | O_CLOEXEC, 0600);
    if (fd < 0) return -errno;
    paths_[fd] = pending.path;
    return fd;
}

std::int32_t SimulatedDevice::transfer(const Pending& pending) {
    const bool writes = pending.action == Action::write;
    if (random_.chance(writes ? faults_.write_error : faults_.read_error)) return -EIO;
    if (writes && random_.chance(faults_.no_space)) return -ENOSPC;
    const bool torn = writes && random_.chance(faults_.torn_write);
    std::size_t bytes = pending.bytes;
    if (torn || random_.chance(faults_.short_count)) bytes = bytes / 2 / kSectorBytes * kSectorBytes;
    if (bytes == 0) return torn ? -EIO : 0;
    const auto offset = static_cast<off_t>(pending.offset);
    if (!writes) {
        const std::int32_t got = result_of(::pread(pending.fd, pending.memory, bytes, offset));
        if (got > 0 && random_.chance(faults_.flipped_bit)) {
            const std::uint64_t bit = random_.below(static_cast<std::uint64_t>(got) * 8);
            pending.memory[bit / 8] ^= std::byte{1} << (bit % 8);
        }
        return got;
    }
    keep_replaced(pending, bytes);
    std::uint64_t bit = bytes * 8;
    if (random_.chance(faults_.flipped_bit)) bit = random_.below(bit);
    if (bit < bytes * 8) pending.memory[bit / 8] ^= std::byte{1} << (bit % 8);
    const std::int32_t put = result_of(::pwrite(pending.fd, pending.memory, bytes, offset));
    if (bit < bytes * 8) pending.memory[bit / 8] ^= std::byte{1} << (bit % 8);
    return torn ? -EIO : put;
}

void SimulatedDevice::keep_replaced(const Pending& pending, std::size_t bytes) {
    Replaced replaced{.time_ns = clock_.now_ns(), .path = path_of(pending.fd), .offset = pending.offset, .before = {}};
    replaced.before.resize(bytes);
    const FileDescriptor file(::open(replaced.path.c_str(), O_RDONLY | O_CLOEXEC));
    const ssize_t got = ::pread(file.get(), replaced.before.data(), bytes, static_cast<off_t>(pending.offset));
    replaced.before.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    replaced_.push_back(std::move(replaced));
    constexpr std::size_t kKeptMax = 256;
    if (replaced_.size() > kKeptMax) replaced_.erase(replaced_.begin(), replaced_.begin() + kKeptMax / 2);
}

// Segments that recovery opened are not in `paths_`.
std::string SimulatedDevice::path_of(int fd) {
    std::string& path = paths_[fd];
    if (!path.empty()) return path;
    char target[512];
    const ssize_t length = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target);
    path.assign(target, static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
    return path;
}

void SimulatedDevice::kill() {
    for (const auto& [key, pending] : pending_) {
        if (pending->action != Action::write || pending->decided) continue;
        const std::size_t landed =
            std::min<std::size_t>(random_.below(pending->bytes / kSectorBytes + 2) * kSectorBytes, pending->bytes);
        if (landed == 0) continue;
        [[maybe_unused]] const ssize_t put =
            ::pwrite(pending->fd, pending->memory, landed, static_cast<off_t>(pending->offset));
    }
    stop();
}

void SimulatedDevice::cut_power(std::int64_t unflushed_ns) {
    const std::int64_t since_ns = clock_.now_ns() - unflushed_ns;
    for (auto at = replaced_.rbegin(); at != replaced_.rend() && at->time_ns >= since_ns; ++at) {
        const FileDescriptor file(::open(at->path.c_str(), O_WRONLY | O_CLOEXEC));
        if (!file) continue;  // the file is gone
        const std::uint64_t outcome = random_.below(3);
        for (std::size_t sector = 0; sector < at->before.size(); sector += kSectorBytes) {
            const bool lost = outcome == 1 || (outcome == 2 && random_.below(2) == 0);
            if (!lost) continue;
            const std::size_t bytes = std::min(kSectorBytes, at->before.size() - sector);
            [[maybe_unused]] const ssize_t put =
                ::pwrite(file.get(), at->before.data() + sector, bytes, static_cast<off_t>(at->offset + sector));
        }
    }
    replaced_.clear();
}

}  // namespace larder::campaign
