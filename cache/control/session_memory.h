#pragma once

// The memory that a session shares with its client: rings that both write, slots that only the daemon writes (enforced
// by seals), and the eventfd that wakes the daemon. A separate thread gets slot memory from the kernel (about 0.5 ms
// a MiB) and returns it, so that neither the control thread nor the data plane waits for this.

#include <cstdint>
#include <functional>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "cache/control/work_thread.h"

namespace larder::cache {

struct SessionMemory {
    FileDescriptor ring_fd;  // sealed: its size is fixed
    FileDescriptor slot_fd;  // sealed: fixed size, no writable mapping but ours
    FileDescriptor request_event;
    Mapping ring;
    Mapping slots;
};

// `slot_bytes` is a multiple of the page size. Only pages that are touched take memory.
Result<SessionMemory> make_session_memory(std::uint32_t ring_entries, std::uint64_t slot_bytes);

class SlotKeeper {
public:
    SlotKeeper() : thread_("larder-slots") {}

    // Shares a slot mapping. When its last holder releases it, the keeper's thread unmaps it and calls `on_unmapped`.
    // The keeper must outlive all holders.
    std::shared_ptr<const Mapping> keep(Mapping slots, std::function<void()> on_unmapped);

    // The bytes [0, bytes) of the slots are populated. `settled`: no more bytes were requested.
    using Populated = std::function<void(std::uint64_t bytes, bool settled)>;

    // Returns a function that populates `slots` (the mapping of `slot_fd`) from the first byte up to the number that
    // its caller passes. It calls `populated` after each piece, on the keeper's thread. Any thread may call the
    // function, but not after the keeper is destroyed. It does nothing once nobody holds `slots`. The slot memories of
    // different sessions take turns.
    std::function<void(std::uint64_t bytes)> populator(const std::shared_ptr<const Mapping>& slots,
                                                       FileDescriptor slot_fd, Populated populated);

private:
    struct Population;
    void populate_next_piece(std::shared_ptr<Population> population);

    WorkThread thread_;
};

}  // namespace larder::cache
