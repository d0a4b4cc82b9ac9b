#pragma once

// A deterministic Remote for tests: objects in memory, reads that complete `delay_ns` after their start (on the fake
// device's clock), and faults by path. It keeps the contract of cache/remote.h, so code under test cannot tell it from
// a slow directory. The counters count delivered bytes.

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cache/remote.h"
#include "tests/support/fake_device.h"

namespace larder::test {

struct FakeRemoteFault {
    std::string path_part;  // of the object's path; empty: any
    protocol::BlockStatus status = protocol::BlockStatus::remote_failed;
    int system_errno = 5;     // EIO
    std::uint64_t skip = 0;   // matching reads that succeed before
    std::uint64_t times = 1;  // matching reads that then fail
};

class FakeRemote final : public cache::Remote {
public:
    explicit FakeRemote(FakeDevice& device, std::int64_t delay_ns = 1'000'000) : device_(device), delay_ns_(delay_ns) {}
    FakeRemote(const FakeRemote&) = delete;
    FakeRemote& operator=(const FakeRemote&) = delete;

    void read(cache::RemoteRead& read) override;

    void put(const std::string& path, std::string content, std::int64_t mtime_ns = 0);
    void remove(const std::string& path) { objects_.erase(path); }
    void set_delay_ns(std::int64_t delay_ns) { delay_ns_ = delay_ns; }
    void inject(const FakeRemoteFault& fault) { faults_.push_back(fault); }
    void clear_faults() { faults_.clear(); }

    std::uint64_t reads() const { return reads_; }
    std::uint64_t bytes_delivered() const { return bytes_delivered_; }
    std::uint64_t reads_in_flight() const { return in_flight_; }

private:
    struct Object {
        std::string content;
        std::int64_t mtime_ns = 0;
    };
    struct Pending : cache::Operation {
        FakeRemote* remote = nullptr;
        cache::RemoteRead* read = nullptr;
    };
    struct Outcome {
        protocol::BlockStatus status;
        int system_errno;
    };

    Outcome serve(const cache::RemoteRead& read);

    FakeDevice& device_;
    std::int64_t delay_ns_;
    std::map<std::string, Object, std::less<>> objects_;
    std::vector<FakeRemoteFault> faults_;
    std::deque<Pending> pool_;
    std::vector<Pending*> free_;
    std::uint64_t reads_ = 0;
    std::uint64_t bytes_delivered_ = 0;
    std::uint64_t in_flight_ = 0;
};

}  // namespace larder::test
