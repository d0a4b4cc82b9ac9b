#pragma once

// The memory that a session shares with its client: rings that both write, slots that only the daemon writes (enforced
// by seals), and the eventfd that wakes the daemon. A separate thread gets slot memory from the kernel (about 0.5 ms
// a MiB) and returns it, so that neither the control thread nor the data plane waits for this.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cache/control/work_thread.h"

namespace larder::cache {

struct SessionMemory {
    FileDescriptor ring_fd;  // sealed: its size is fixed
    FileDescriptor slot_fd;  // sealed: fixed size, no writable mapping but ours
    // The same files, opened once more for the client. The kernel counts these opens, and a mapping of one keeps it
    // open, so is_released() knows whether any process still has the memory.
    FileDescriptor client_ring_fd;
    FileDescriptor client_slot_fd;  // read-only
    FileDescriptor request_event;
    Mapping ring;
    Mapping slots;
};

// `slot_bytes` is a multiple of the page size. Only pages that are touched take memory. Needs /proc.
Result<SessionMemory> make_session_memory(std::uint32_t ring_entries, std::uint64_t slot_bytes,
                                          std::uint32_t share_blocks = 0);

// True if no process has the memory file open or mapped through a client's descriptor, or a copy of one. `fd` is the
// daemon's own descriptor.
bool is_released(const FileDescriptor& fd);

class SlotKeeper {
public:
    SlotKeeper() : thread_("larder-slots") {}

    // A session's slots, and the files of its memory.
    struct Slots {
        Mapping mapping;
        FileDescriptor slot_fd;
        FileDescriptor ring_fd;
    };
    // Shares a session's slots. When the last holder releases them, the keeper's thread unmaps them and calls
    // `on_unmapped`. It calls `on_released` once no client has the memory any more either. The keeper must outlive all
    // holders.
    std::shared_ptr<const Slots> keep(Mapping slots, FileDescriptor slot_fd, FileDescriptor ring_fd,
                                      std::function<void()> on_unmapped, std::function<void()> on_released);

    // Looks for memory that clients still had when its session ended and have released since. Any thread; call it about
    // once a second.
    void find_released();

    // The bytes [0, bytes) of the slots are populated. `settled`: no more bytes were requested.
    using Populated = std::function<void(std::uint64_t bytes, bool settled)>;

    // Returns a function that populates `slots` from the first byte up to the number that its caller passes. It calls
    // `populated` after each piece, on the keeper's thread. Any thread may call the function, but not after the keeper
    // is destroyed. It does nothing once nobody holds `slots`. The slot memories of different sessions take turns.
    std::function<void(std::uint64_t bytes)> populator(const std::shared_ptr<const Slots>& slots, Populated populated);

private:
    struct Population;
    struct Lingering {
        FileDescriptor slot_fd;
        FileDescriptor ring_fd;
        std::function<void()> on_released;
    };
    void populate_next_piece(std::shared_ptr<Population> population);
    void erase_released();

    std::vector<Lingering> lingering_;  // memory of ended sessions that clients still have; on thread_ only
    WorkThread thread_;
};

}  // namespace larder::cache
