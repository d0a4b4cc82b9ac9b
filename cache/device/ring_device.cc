#include "cache/device/ring_device.h"

#include <fcntl.h>
#include <liburing.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "base/assert.h"
#include "cache/device/opened_file.h"
#include "cache/device/registered_buffers.h"

namespace larder::cache {

namespace {

constexpr std::uint32_t kTransferBytesMax = 1u << 30;  // an operation's length has 32 bits; longer ones complete short
constexpr unsigned kDiskWorkersMax = 32;  // kernel threads for operations that block, without those of add_workers
constexpr std::uint64_t kOpenMark = 1;    // lowest bit of user_data: the result is a descriptor

static_assert(alignof(Operation) > kOpenMark);

struct NamedOperation {
    int code;
    const char* name;
};
constexpr NamedOperation kNeeded[] = {
    {IORING_OP_READ, "read"},     {IORING_OP_WRITE, "write"},         {IORING_OP_READ_FIXED, "read_fixed"},
    {IORING_OP_OPENAT, "openat"}, {IORING_OP_STATX, "statx"},         {IORING_OP_WRITE_FIXED, "write_fixed"},
    {IORING_OP_CLOSE, "close"},   {IORING_OP_FALLOCATE, "fallocate"}, {IORING_OP_UNLINKAT, "unlinkat"},
    {IORING_OP_POLL_ADD, "poll"}, {IORING_OP_ASYNC_CANCEL, "cancel"}, {IORING_OP_OPENAT2, "openat2"},
};

// True if an enter call failed for a passing reason. Any other error is a bug in this file.
bool is_transient(int result) {
    return result == -ETIME || result == -EINTR || result == -EBUSY || result == -EAGAIN || result == -ENOMEM;
}

Result<void> check_operations(io_uring& ring) {
    if ((ring.features & IORING_FEAT_EXT_ARG) == 0 || (ring.features & IORING_FEAT_NODROP) == 0)
        return fail(ErrorCode::unsupported, "this kernel's io_uring cannot wait with a timeout (Linux 5.11 can)");
    io_uring_probe* probe = io_uring_get_probe_ring(&ring);
    if (probe == nullptr) return fail(ErrorCode::unsupported, "this kernel's io_uring cannot report what it supports");
    std::string missing;
    for (const auto& [code, name] : kNeeded)
        if (io_uring_opcode_supported(probe, code) == 0) missing += std::string(missing.empty() ? "" : ", ") + name;
    io_uring_free_probe(probe);
    if (!missing.empty()) return fail(ErrorCode::unsupported, "this kernel's io_uring lacks " + missing);
    return {};
}

class RingDevice final : public Device {
public:
    // Takes ownership of `ring`, by pointer because an io_uring must not move.
    RingDevice(std::unique_ptr<io_uring> ring, const Clock& clock)
        : clock_(clock), ring_(std::move(ring)), buffers_(*ring_) {
        skips_success_ = (ring_->features & IORING_FEAT_CQE_SKIP) != 0;
        set_workers();
    }
    RingDevice(const RingDevice&) = delete;
    RingDevice& operator=(const RingDevice&) = delete;

    ~RingDevice() override {
        stop();
        io_uring_queue_exit(ring_.get());
    }

    void open(const char* path, int flags, unsigned mode, Operation& operation) override {
        io_uring_sqe& entry = next_entry();
        io_uring_prep_openat(&entry, AT_FDCWD, path, flags | O_CLOEXEC | O_NONBLOCK, mode);
        begin(entry, operation, kOpenMark);
    }

    void open_at(int directory, const char* path, LinkRule rule, int flags, Operation& operation) override {
        io_uring_sqe& entry = next_entry();
        io_uring_prep_openat2(&entry, directory, path, &kept_how(rule, with_nonblock(flags)));
        begin(entry, operation, kOpenMark);
    }

    void stat(int fd, struct statx& status, Operation& operation) override {
        io_uring_sqe& entry = next_entry();
        io_uring_prep_statx(&entry, fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_DIOALIGN, &status);
        begin(entry, operation);
    }

    void read(int fd, std::span<std::byte> target, std::uint64_t offset, Operation& operation) override {
        const auto bytes = static_cast<unsigned>(std::min<std::size_t>(target.size(), kTransferBytesMax));
        const int buffer = buffers_.find(target.data(), bytes);
        io_uring_sqe& entry = next_entry();
        if (buffer >= 0)
            io_uring_prep_read_fixed(&entry, fd, target.data(), bytes, offset, buffer);
        else
            io_uring_prep_read(&entry, fd, target.data(), bytes, offset);
        begin(entry, operation);
    }

    void write(int fd, std::span<const std::byte> source, std::uint64_t offset, Operation& operation) override {
        const auto bytes = static_cast<unsigned>(std::min<std::size_t>(source.size(), kTransferBytesMax));
        const int buffer = buffers_.find(source.data(), bytes);
        io_uring_sqe& entry = next_entry();
        if (buffer >= 0)
            io_uring_prep_write_fixed(&entry, fd, source.data(), bytes, offset, buffer);
        else
            io_uring_prep_write(&entry, fd, source.data(), bytes, offset);
        begin(entry, operation);
    }

    void allocate(int fd, std::uint64_t bytes, Operation& operation) override {
        io_uring_sqe& entry = next_entry();
        io_uring_prep_fallocate(&entry, fd, 0, 0, static_cast<off_t>(bytes));
        begin(entry, operation);
    }

    void unlink(const char* path, Operation& operation) override {
        io_uring_sqe& entry = next_entry();
        io_uring_prep_unlinkat(&entry, AT_FDCWD, path, 0);
        begin(entry, operation);
    }

    void close(int fd) override {
        if (stopped_) {
            ::close(fd);
            return;
        }
        io_uring_sqe& entry = next_entry();
        io_uring_prep_close(&entry, fd);
        begin_without_completion(entry);
    }

    void watch(int fd, Operation& operation) override {
        io_uring_sqe& entry = next_entry();
        io_uring_prep_poll_add(&entry, fd, POLLIN);
        begin(entry, operation);
    }

    void cancel(Operation& operation) override {
        if (stopped_ || operation.device_state == nullptr) return;
        // The kernel compares the whole user_data, with kOpenMark, so device_state holds the whole value.
        const auto user_data = reinterpret_cast<std::uintptr_t>(operation.device_state);
        io_uring_sqe& entry = next_entry();
        io_uring_prep_cancel64(&entry, user_data, 0);
        begin_without_completion(entry);
    }

    bool add_buffer(std::span<std::byte> memory) override { return buffers_.add(memory); }
    void remove_buffer(std::span<std::byte> memory) override { buffers_.remove(memory); }

    void add_workers(unsigned count) override {
        workers_ += count;
        set_workers();
    }
    void remove_workers(unsigned count) override {
        workers_ -= count;
        set_workers();
    }

    void wait(std::int64_t deadline_ns) override {
        LARDER_ASSERT(!waiting_ && !stopped_);
        waiting_ = true;
        drain_overflow();
        enter(deadline_ns);
        deliver();
        waiting_ = false;
    }

    bool stop() override {
        if (stopped_) return in_flight_ == 0;
        LARDER_ASSERT(!waiting_);
        stopped_ = true;
        const std::int64_t deadline_ns = clock_.now_ns() + kDeviceStopTimeout_ns;
        bool cancelled = false;
        while (in_flight_ > 0 || io_uring_sq_ready(ring_.get()) > 0 || !overflow_.empty()) {
            drain_overflow();
            if (!cancelled && overflow_.empty()) {
                if (io_uring_sqe* entry = io_uring_get_sqe(ring_.get())) {
                    io_uring_prep_cancel64(entry, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
                    begin_without_completion(*entry);
                    cancelled = true;
                }
            }
            const std::int64_t now_ns = clock_.now_ns();
            if (now_ns >= deadline_ns) break;
            enter(in_flight_ > 0 ? deadline_ns : now_ns);
            deliver();
        }
        return in_flight_ == 0;
    }

    const char* kind() const override { return "io_uring"; }

private:
    // The kernel starts a worker only for an operation that blocks, and ends idle ones. All rings of a thread share
    // their workers, so that a ring of its own would not keep a remote apart.
    void set_workers() {
        if (stopped_) return;
        unsigned workers[2] = {workers_, 0};  // {bounded (files), unbounded}; 0 keeps the kernel's limit
        io_uring_register_iowq_max_workers(ring_.get(), workers);
    }

    // Returns a submission entry to fill: in the queue, or in overflow_ if the kernel takes no more at the moment.
    io_uring_sqe& next_entry() {
        LARDER_ASSERT(!stopped_);
        if (overflow_.empty()) {
            if (io_uring_sqe* entry = io_uring_get_sqe(ring_.get())) return *entry;
            const int submitted = io_uring_submit(ring_.get());
            LARDER_ASSERT(submitted >= 0 || is_transient(submitted));
            if (io_uring_sqe* entry = io_uring_get_sqe(ring_.get())) return *entry;
        }
        return overflow_.emplace_back();
    }

    void begin(io_uring_sqe& entry, Operation& operation, std::uint64_t mark = 0) {
        LARDER_ASSERT(operation.device_state == nullptr && operation.done != nullptr);
        entry.user_data = reinterpret_cast<std::uintptr_t>(&operation) | mark;
        operation.device_state = reinterpret_cast<void*>(entry.user_data);
        ++in_flight_;
    }

    // The kernel reads an open_how when the entry is submitted, so each one asked for is kept. There are only a few.
    open_how& kept_how(LinkRule rule, int flags) {
        const open_how wanted = how_to_open(rule, flags);
        for (open_how& how : hows_)
            if (how.flags == wanted.flags && how.resolve == wanted.resolve) return how;
        return hows_.emplace_back(wanted);
    }

    // user_data 0 marks an operation without a completion.
    void begin_without_completion(io_uring_sqe& entry) {
        entry.user_data = 0;
        if (skips_success_) entry.flags |= IOSQE_CQE_SKIP_SUCCESS;
    }

    // Keeps the order in which operations were started, so that a cancel comes after the operation it cancels.
    void drain_overflow() {
        std::size_t moved = 0;
        for (; moved < overflow_.size(); ++moved) {
            io_uring_sqe* entry = io_uring_get_sqe(ring_.get());
            if (entry == nullptr) break;
            *entry = overflow_[moved];
        }
        overflow_.erase(overflow_.begin(), overflow_.begin() + static_cast<std::ptrdiff_t>(moved));
    }

    // Submits, and waits if there is no completion yet, in at most one system call. Does not wait while overflow_ has
    // entries, because one of those may be the first to complete.
    void enter(std::int64_t deadline_ns) {
        if (!overflow_.empty()) deadline_ns = std::numeric_limits<std::int64_t>::min();
        const bool to_submit = io_uring_sq_ready(ring_.get()) > 0;
        int result = 0;
        if (io_uring_cq_ready(ring_.get()) > 0) {
            if (to_submit) result = io_uring_submit(ring_.get());
        } else if (const std::int64_t now_ns = clock_.now_ns(); now_ns < deadline_ns) {
            const std::int64_t left_ns = deadline_ns - now_ns;
            __kernel_timespec timeout{.tv_sec = left_ns / 1'000'000'000, .tv_nsec = left_ns % 1'000'000'000};
            io_uring_cqe* completion = nullptr;
            result = io_uring_submit_and_wait_timeout(ring_.get(), &completion, 1, &timeout, nullptr);
        } else if (to_submit) {
            result = io_uring_submit_and_get_events(ring_.get());
        } else if (in_flight_ > 0 && work_pending()) {
            result = io_uring_get_events(ring_.get());
        }
        LARDER_ASSERT(result >= 0 || is_transient(result));
    }

    // True if the kernel may hold completions that reach the queue only by an enter call.
    bool work_pending() const {
        return (IO_URING_READ_ONCE(*ring_->sq.kflags) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0 ||
               (ring_->flags & IORING_SETUP_TASKRUN_FLAG) == 0;
    }

    void deliver() {
        std::array<io_uring_cqe*, 64> batch;
        // Check before peek, because peek enters the kernel if the queue is empty.
        while (io_uring_cq_ready(ring_.get()) > 0) {
            const unsigned count = io_uring_peek_batch_cqe(ring_.get(), batch.data(), batch.size());
            // Copy the results first: `done` may start operations, which may enter the kernel and reuse the queue.
            std::array<std::pair<std::uint64_t, std::int32_t>, batch.size()> ended;
            for (unsigned i = 0; i < count; ++i) ended[i] = {batch[i]->user_data, batch[i]->res};
            io_uring_cq_advance(ring_.get(), count);
            for (unsigned i = 0; i < count; ++i) {
                const auto [user_data, result] = ended[i];
                if (user_data == 0) continue;
                --in_flight_;
                if (stopped_) {  // the Operation may be gone
                    if ((user_data & kOpenMark) != 0 && result >= 0) ::close(result);
                    continue;
                }
                auto& operation = *reinterpret_cast<Operation*>(user_data & ~kOpenMark);
                operation.device_state = nullptr;
                operation.done(operation, (user_data & kOpenMark) != 0 ? check_opened(result) : result);
            }
        }
    }

    const Clock& clock_;
    std::unique_ptr<io_uring> ring_;
    RegisteredBuffers buffers_;
    std::vector<io_uring_sqe> overflow_;  // entries started but not yet in the queue; keeps its capacity
    std::deque<open_how> hows_;           // see kept_how; a deque keeps references valid
    std::uint64_t in_flight_ = 0;
    unsigned workers_ = kDiskWorkersMax;
    bool skips_success_ = false;
    bool waiting_ = false;
    bool stopped_ = false;
};

}  // namespace

Result<std::unique_ptr<Device>> make_ring_device(const Clock& clock, const RingOptions& options) {
    // The best flag set comes first. A kernel that does not know a flag returns EINVAL.
    constexpr unsigned kAlways = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
    constexpr unsigned kFlagSets[] = {
        kAlways | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
            IORING_SETUP_TASKRUN_FLAG,
        kAlways | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
        kAlways,
    };
    auto ring = std::make_unique<io_uring>();
    int result = -EINVAL;
    // Some kernels count the ring's memory against RLIMIT_MEMLOCK. A smaller ring is better than none.
    for (unsigned entries = options.entries; entries > 0; entries = result == -ENOMEM ? entries / 2 : 0) {
        for (const unsigned flags : kFlagSets) {
            if (!options.defer_task_work && (flags & IORING_SETUP_DEFER_TASKRUN) != 0) continue;
            io_uring_params parameters{};
            parameters.flags = flags;
            parameters.cq_entries = entries * 4;
            result = io_uring_queue_init_params(entries, ring.get(), &parameters);
            if (result != -EINVAL) break;
        }
    }
    if (result < 0) return fail_errno(-result, "io_uring_setup");
    if (const auto checked = check_operations(*ring); !checked) {
        io_uring_queue_exit(ring.get());
        return std::unexpected(checked.error());
    }
    return std::make_unique<RingDevice>(std::move(ring), clock);
}

}  // namespace larder::cache
