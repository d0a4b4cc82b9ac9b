#pragma once

// A deterministic Device for tests. Files are on a FakeDisk, time is a ManualClock's, and no other thread runs. An
// operation takes effect when it completes, `latency_ns` plus a seeded part of `jitter_ns` after it was started, so
// jitter reorders. `wait` moves the clock to the next completion or to the deadline. Watches poll real descriptors
// (eventfds, sockets) without blocking. Faults are injected by action and path. The same seed and the same calls give
// the same trace hash.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/device.h"
#include "tests/support/fake_disk.h"

namespace larder::test {

enum class FakeAction : std::uint8_t { open, stat, read, write, allocate, unlink, watch, timer };

struct Fault {
    enum class Kind : std::uint8_t {
        fail,         // completes with -error, nothing happens
        short_count,  // a read or write does half of the request
        torn,         // a write stores a prefix, then completes with -error
        flip_bit,     // one bit read or written is wrong; reports success
        crash,        // as crash() below, at this operation
    };
    FakeAction action = FakeAction::read;
    Kind kind = Kind::fail;
    std::string path_part;    // of the file's path; empty: any
    std::uint64_t skip = 0;   // matching operations that succeed before
    std::uint64_t times = 1;  // matching operations that then fail
    int error = 5;            // EIO
};

struct FakeDeviceOptions {
    std::uint64_t seed = 1;
    std::int64_t latency_ns = 100'000;
    std::int64_t jitter_ns = 0;
};

class FakeDevice final : public cache::Device {
public:
    FakeDevice(FakeDisk& disk, ManualClock& clock, const FakeDeviceOptions& options = {});
    ~FakeDevice() override;

    void open(const char* path, int flags, unsigned mode, cache::Operation& operation) override;
    // The disk has no symbolic links, so every rule holds. `path` must be absolute.
    void open_at(int directory, const char* path, LinkRule rule, int flags, cache::Operation& operation) override;
    void stat(int fd, struct statx& into, cache::Operation& operation) override;
    void read(int fd, std::span<std::byte> into, std::uint64_t offset, cache::Operation& operation) override;
    void write(int fd, std::span<const std::byte> from, std::uint64_t offset, cache::Operation& operation) override;
    void allocate(int fd, std::uint64_t bytes, cache::Operation& operation) override;
    void unlink(const char* path, cache::Operation& operation) override;
    void close(int fd) override;
    void watch(int fd, cache::Operation& operation) override;
    void cancel(cache::Operation& operation) override;
    bool add_buffer(std::span<std::byte> memory) override {
        buffers_.push_back(memory);
        return false;
    }
    void remove_buffer(std::span<std::byte>) override {}
    void add_workers(unsigned) override {}
    void remove_workers(unsigned) override {}
    void wait(std::int64_t deadline_ns) override;
    bool stop() override;
    const char* kind() const override { return "fake"; }

    // Completes with 0 after `delay_ns`; other fakes build their delays on this.
    void start_timer(std::int64_t delay_ns, cache::Operation& operation);

    void inject(const Fault& fault) { faults_.push_back(fault); }
    void clear_faults() { faults_.clear(); }

    // Cuts the power: each write in flight stores a seeded prefix of whole sectors. Nothing completes any more.
    void crash();
    bool crashed() const { return crashed_; }

    // Returns the time at which the next operation completes, INT64_MAX if none is timed. For simulations of several
    // parts on one clock.
    std::int64_t next_completion_ns() const;
    std::uint64_t operations(FakeAction action) const { return counts_[static_cast<std::size_t>(action)]; }
    std::size_t in_flight() const { return pending_.size(); }
    std::size_t open_files() const { return open_.size(); }
    std::uint64_t trace_hash() const { return trace_hash_; }
    // The memory that add_buffer was called with, in order.
    const std::vector<std::span<std::byte>>& buffers() const { return buffers_; }

private:
    struct OpenFile {
        std::shared_ptr<FakeFile> file;
        std::string path;
        int flags = 0;
    };
    struct Pending {
        FakeAction action = FakeAction::timer;
        cache::Operation* operation = nullptr;
        std::int64_t due_ns = 0;
        int fd = -1;
        int flags = 0;
        OpenFile target;  // the file when the operation started
        std::byte* memory = nullptr;
        std::size_t bytes = 0;  // to transfer, or the size to allocate
        std::uint64_t offset = 0;
        std::int32_t result = 0;
        bool decided = false;  // `result` is set already (cancelled, or a watch that fired)
    };

    void start(Pending pending, cache::Operation& operation);
    Pending pending_on_file(FakeAction action, int fd) const;
    std::uint64_t random();
    const Fault* take_fault(const Pending& pending);
    std::int32_t perform(const Pending& pending);
    std::int32_t perform_open(const Pending& pending);
    std::int32_t perform_stat(const Pending& pending) const;
    std::int32_t transfer(const Pending& pending, const Fault* fault);
    void decide(std::pair<std::int64_t, std::uint64_t> key, std::int32_t result);
    void poll_watches();

    FakeDisk& disk_;
    ManualClock& clock_;
    FakeDeviceOptions options_;
    std::map<int, OpenFile> open_;
    std::map<std::pair<std::int64_t, std::uint64_t>, Pending> pending_;  // by due time, then start order
    std::vector<Fault> faults_;
    std::vector<std::span<std::byte>> buffers_;
    std::uint64_t counts_[8] = {};
    std::uint64_t sequence_ = 0;
    std::uint64_t randoms_ = 0;
    std::uint64_t trace_hash_ = 0;
    bool crashed_ = false;
    bool stopped_ = false;
    bool waiting_ = false;
};

}  // namespace larder::test
