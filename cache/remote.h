#pragma once

// The only door to where datasets live. A Remote belongs to one data-plane thread, as a Device does. It reads a range
// of one object, whole or not at all, after checking that the object is still the one the manifest describes. It never
// writes to the remote. `file://` is cache/remote/file_remote.h; tests add a fake with delays and faults.

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

// Whose bandwidth a read takes. Its own bytes are paid for before it starts; what tries that failed and second requests
// took is paid for as it turns out. Any thread.
class RemotePayer {
public:
    virtual ~RemotePayer() = default;
    // They were taken, whatever that leaves.
    virtual void pay(std::uint64_t bytes, std::int64_t now_ns) = 0;
    // Of what was paid for, so much was not taken after all.
    virtual void give_back(std::uint64_t bytes) = 0;
    // When so many could be paid for.
    virtual std::int64_t ready_at_ns(std::uint64_t bytes) const = 0;
};

// One read in flight. The caller owns it, and the memory `into` names, until `done` has run; `path` must outlive it too
// (it points into the mapped manifest).
struct RemoteRead {
    void (*done)(RemoteRead& read, protocol::BlockStatus status, int system_errno) noexcept = nullptr;
    std::string_view path;  // relative to the remote's root
    std::uint64_t object_bytes = 0;
    std::int64_t object_mtime_ns = 0;
    std::uint64_t offset = 0;
    std::span<std::byte> into;
    std::shared_ptr<RemotePayer> payer;  // of what is taken beyond `into`; null: nobody
    std::uint64_t extra_bytes = 0;       // set when `done` runs: what was taken beyond `into`, and paid for
    void* remote_state = nullptr;        // the remote's own while the read runs
};

// Once a read is done, for whoever counted and paid for `into` when it began: the bytes to count beyond that. Of a read
// that failed `into` never came; its payer has that back.
inline std::uint64_t settle(RemoteRead& read, protocol::BlockStatus status) {
    const std::shared_ptr<RemotePayer> payer = std::exchange(read.payer, nullptr);
    const std::uint64_t extra_bytes = std::exchange(read.extra_bytes, 0);
    if (status == protocol::BlockStatus::ok) return extra_bytes;
    if (payer != nullptr) payer->give_back(read.into.size());
    return extra_bytes - std::min<std::uint64_t>(extra_bytes, read.into.size());
}

class Remote {
public:
    virtual ~Remote() = default;
    // Completes later, inside Device::wait, never from inside this call. Status is ok only when all of `into` is filled
    // with the object's bytes.
    virtual void read(RemoteRead& read) = 0;
};

// A remote for "file:///path" reading through `device`, which must outlive it. A remote is destroyed when none of its
// reads runs, or after Device::stop.
Result<std::unique_ptr<Remote>> make_remote(std::string_view url, Device& device);

}  // namespace larder::cache
