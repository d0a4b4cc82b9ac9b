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
    // When so many could be paid for; of 0 bytes: when nothing is owed.
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
