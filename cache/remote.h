#pragma once

// The data plane reads the remotes where datasets live only through a Remote. A Remote belongs to one data-plane
// thread, as a Device does. It reads a range of one object, whole or not at all, after checking that the object is
// still the one that the manifest describes. It never writes to the remote. `file://` is cache/remote/file_remote.h;
// tests add a fake with delays and faults.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "cache/device.h"
#include "cache/protocol/wire.h"

namespace larder::cache {

// Pays for the bandwidth that reads take. The caller pays for a read's own bytes before the read starts; the remote
// pays for the bytes of failed tries and of second requests when these are taken. Any thread.
class RemotePayer {
public:
    virtual ~RemotePayer() = default;
    // Pays for bytes that were taken, even if the balance becomes negative.
    virtual void pay(std::uint64_t bytes, std::int64_t now_ns) = 0;
    // Refunds bytes that were paid for but not taken.
    virtual void refund(std::uint64_t bytes) = 0;
    // The time from which `bytes` can be paid for.
    virtual std::int64_t ready_at_ns(std::uint64_t bytes) const = 0;
};

// The times of a read that its remote knows, of the steady clock. If the request was tried several times, `last_try_ns`
// and the times after it are of the try that ended the read. 0: that try did not come so far.
struct RemoteTimes {
    std::uint32_t tries = 0;  // 0: the remote knows no times
    bool is_new_connection = false;
    std::int64_t first_try_ns = 0;
    std::int64_t last_try_ns = 0;
    std::int64_t sent_ns = 0;  // connected, and about to send the request
    std::int64_t first_byte_ns = 0;
    std::int64_t ended_ns = 0;
};

// One read in flight. The caller owns it and the memory of `into` until `done` has run. The characters of `path` must
// live as long (they lie in the mapped manifest).
struct RemoteRead {
    void (*done)(RemoteRead& read, protocol::BlockStatus status, int system_errno) noexcept = nullptr;
    std::string_view path;  // relative to the remote's root
    std::uint64_t object_bytes = 0;
    std::int64_t object_mtime_ns = 0;
    std::uint64_t offset = 0;
    std::span<std::byte> into;
    std::shared_ptr<RemotePayer> payer;  // pays for bytes beyond `into`; null: nobody pays
    std::uint64_t extra_bytes = 0;       // set when `done` runs: bytes taken and paid for beyond `into`
    void* remote_state = nullptr;        // used by the remote while the read runs
    RemoteTimes* times = nullptr;        // filled in before `done` runs; null: nobody asks
};

// Settles the payment of a finished read whose `into` was counted and paid for when it began. Returns the bytes still
// to be counted. If the read failed, `into` never arrived: its bytes are refunded and deducted from the result.
inline std::uint64_t settle_payment(RemoteRead& read, protocol::BlockStatus status) {
    const std::shared_ptr<RemotePayer> payer = std::exchange(read.payer, nullptr);
    const std::uint64_t extra_bytes = std::exchange(read.extra_bytes, 0);
    if (status == protocol::BlockStatus::ok) return extra_bytes;
    if (payer != nullptr) payer->refund(read.into.size());
    return extra_bytes - std::min<std::uint64_t>(extra_bytes, read.into.size());
}

class Remote {
public:
    virtual ~Remote() = default;
    // Completes inside Device::wait, never from inside this call. Status is ok only if all of `into` is filled with the
    // object's bytes.
    virtual void read(RemoteRead& read) = 0;
};

}  // namespace larder::cache
