#pragma once

// The memory a session shares with its client, as kernel objects: rings that both write, slots that only the daemon
// writes (the seals see to that), and the eventfd that wakes the daemon. And the thread that does the slow things to
// it, so that neither the control thread nor the data plane does: getting slot memory from the kernel (about 0.5 ms a
// MiB) and giving it back.

#include <cstdint>
#include <functional>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "cache/control/work_thread.h"

namespace larder::cache {

struct SessionMemory {
    FileDescriptor ring_fd;  // sealed: its size is fixed
    FileDescriptor slot_fd;  // sealed: its size is fixed, and no writable mapping but ours will be
    FileDescriptor request_event;
    Mapping ring;
    Mapping slots;
};

// `slot_bytes` is a multiple of the page size. No memory is taken yet but what is touched.
Result<SessionMemory> make_session_memory(std::uint32_t ring_entries, std::uint64_t slot_bytes);

class SlotKeeper {
public:
    SlotKeeper() : thread_("larder-slots") {}

    // Shares a slot mapping: when its last holder lets go, it is unmapped on the keeper's thread and `ended` is called
    // there. The keeper must outlive all holders.
    std::shared_ptr<const Mapping> keep(Mapping slots, std::function<void()> ended);

    // The bytes [0, bytes) of the slots have memory behind them. `settled`: no more were asked for.
    using Populated = std::function<void(std::uint64_t bytes, bool settled)>;

    // Returns a function that gets the memory behind `slots` (the mapping of `slot_fd`), from the first byte up to the
    // number its caller names. It calls `populated` after each piece, on the keeper's thread. Any thread may call it,
    // but not after the keeper has gone. It does nothing when nobody holds `slots` any more. Slot memories take turns.
    std::function<void(std::uint64_t bytes)> populator(const std::shared_ptr<const Mapping>& slots,
                                                       FileDescriptor slot_fd, Populated populated);

private:
    struct Population;
    void go_on(std::shared_ptr<Population> population);

    WorkThread thread_;
};

}  // namespace larder::cache
