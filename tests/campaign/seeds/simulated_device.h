#pragma once

// A Device in simulated time. Files are real files, which lie on a tmpfs, so that recovery, which does not go through
// a Device, reads what the device wrote. `wait` never waits and never moves the clock: it completes what is due and
// notes until when the caller would have slept. Descriptors of clients are not polled: whoever would have made one
// readable calls `signal`.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/device.h"
#include "tests/campaign/seeds/event_queue.h"

namespace larder::campaign {

// The chances of faults of one operation, and its delays.
struct DiskFaults {
    double read_error = 0;
    double write_error = 0;
    double short_count = 0;
    double torn_write = 0;   // stores a prefix, then fails
    double flipped_bit = 0;  // reads or writes one wrong bit without an error
    double no_space = 0;     // of allocate and write
    std::int64_t delay_max_ns = 400'000;
};

class SimulatedDevice final : public cache::Device {
public:
    SimulatedDevice(const Clock& clock, WorldRandom& random, const DiskFaults& faults)
        : clock_(clock), random_(random), faults_(faults) {}
    ~SimulatedDevice() override { stop(); }

    void open(const char* path, int flags, unsigned mode, cache::Operation& operation) override;
    void open_at(int directory, const char* path, LinkRule rule, int flags, cache::Operation& operation) override;
    void stat(int fd, struct statx& into, cache::Operation& operation) override;
    void read(int fd, std::span<std::byte> into, std::uint64_t offset, cache::Operation& operation) override;
    void write(int fd, std::span<const std::byte> from, std::uint64_t offset, cache::Operation& operation) override;
    void allocate(int fd, std::uint64_t bytes, cache::Operation& operation) override;
    void unlink(const char* path, cache::Operation& operation) override;
    void close(int fd) override;
    void watch(int fd, cache::Operation& operation) override;
    void cancel(cache::Operation& operation) override;
    bool add_buffer(std::span<std::byte>) override { return false; }
    void remove_buffer(std::span<std::byte>) override {}
    void add_workers(unsigned) override {}
    void remove_workers(unsigned) override {}
    void wait(std::int64_t deadline_ns) override;
    bool stop() override;
    const char* kind() const override { return "simulated"; }

    // Completes with 0 after the delay.
    void start_timer(std::int64_t delay_ns, cache::Operation& operation);
    // Completes when `finish` is called for it.
    void start_open_ended(cache::Operation& operation);
    void finish(cache::Operation& operation, std::int32_t result);
    // The descriptor is readable now.
    void signal(int fd);

    // Returns the time at which the owner has to call `wait` again, by the device's clock.
    std::int64_t wake_at_ns() const;
    // Ends as a killed process does: a write in flight stores some of its sectors.
    void kill();
    // Then cuts the power: of the writes that ended lately, some sectors never reached the disk.
    void cut_power(std::int64_t unflushed_ns);

private:
    enum class Action : std::uint8_t { open, stat, read, write, allocate, unlink, watch, timer };
    struct Pending {
        std::pair<std::int64_t, std::uint64_t> key;
        Action action = Action::timer;
        cache::Operation* operation = nullptr;
        int fd = -1;
        int flags = 0;
        std::byte* memory = nullptr;
        std::size_t bytes = 0;
        std::uint64_t offset = 0;
        std::string path;
        std::int32_t result = 0;
        bool decided = false;
    };
    // The bytes that a write replaced.
    struct Replaced {
        std::int64_t time_ns;
        std::string path;
        std::uint64_t offset;
        std::vector<std::byte> before;
    };

    Pending& start(Action action, cache::Operation& operation, std::int64_t due_ns);
    Pending& start_on_disk(Action action, cache::Operation& operation);
    void decide(Pending& pending, std::int32_t result);
    std::int32_t perform(Pending& pending);
    std::int32_t perform_open(const Pending& pending);
    std::int32_t transfer(const Pending& pending);
    void keep_replaced(const Pending& pending, std::size_t bytes);
    std::string path_of(int fd);

    const Clock& clock_;
    WorldRandom& random_;
    const DiskFaults& faults_;
    std::map<std::pair<std::int64_t, std::uint64_t>, std::unique_ptr<Pending>> pending_;  // by due time, then start
    std::map<int, std::string> paths_;
    std::set<int> signalled_;  // descriptors that became readable while nobody watched
    std::vector<Replaced> replaced_;
    std::uint64_t sequence_ = 0;
    std::int64_t deadline_ns_ = 0;
    bool stopped_ = false;
    Pending ignored_;  // stands for operations started after the end, which never complete
};

}  // namespace larder::campaign
