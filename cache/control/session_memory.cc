#include "cache/control/session_memory.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/huge_pages.h"
#include "cache/protocol/wire.h"

namespace larder::cache {
namespace {

struct SharedMemory {
    FileDescriptor fd;
    Mapping mapping;
};

Result<SharedMemory> make_shared_memory(const char* name, std::size_t bytes, int seals) {
    SharedMemory memory;
    memory.fd = FileDescriptor(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!memory.fd) return fail_errno(errno, std::string("memfd_create ") + name);
    if (::ftruncate(memory.fd.get(), static_cast<off_t>(bytes)) != 0) {
        return fail_errno(errno, std::string(name) + " of " + std::to_string(bytes) + " bytes");
    }
    // Map writable before sealing: the seal refuses all later writable mappings.
    auto mapping = Mapping::of(memory.fd.get(), bytes, Mapping::Access::read_write);
    if (!mapping) return std::unexpected(mapping.error().within(name));
    memory.mapping = std::move(*mapping);
    if (::fcntl(memory.fd.get(), F_ADD_SEALS, seals) != 0) return fail_errno(errno, std::string("seal ") + name);
    return memory;
}

Result<FileDescriptor> reopen(const FileDescriptor& fd, int flags) {
    return open_file("/proc/self/fd/" + std::to_string(fd.get()), flags);
}

Result<FileDescriptor> make_request_event() {
    FileDescriptor event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event) return fail_errno(errno, "eventfd for requests");
    // Check that RWF_NOWAIT works: the data plane reads the eventfd with this flag (Session::take_request_event).
    std::uint64_t count = 0;
    const iovec target{&count, sizeof count};
    if (::preadv2(event.get(), &target, 1, -1, RWF_NOWAIT) < 0 && errno != EAGAIN) {
        return fail(ErrorCode::unsupported, "this kernel cannot read an eventfd without waiting (Linux 5.8 can)");
    }
    return event;
}

}  // namespace

Result<SessionMemory> make_session_memory(std::uint32_t ring_entries, std::uint64_t slot_bytes,
                                          std::uint32_t share_blocks) {
    constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    auto ring = make_shared_memory("larder-ring", protocol::ring_bytes(ring_entries, share_blocks), kFixedSize);
    if (!ring) return std::unexpected(ring.error());
    auto slots = make_shared_memory("larder-slots", slot_bytes, kFixedSize | F_SEAL_FUTURE_WRITE);
    if (!slots) return std::unexpected(slots.error());
    auto request_event = make_request_event();
    if (!request_event) return std::unexpected(request_event.error());
    auto client_ring = reopen(ring->fd, O_RDWR);
    if (!client_ring) return std::unexpected(client_ring.error());
    auto client_slots = reopen(slots->fd, O_RDONLY);
    if (!client_slots) return std::unexpected(client_slots.error());
    return SessionMemory{.ring_fd = std::move(ring->fd),
                         .slot_fd = std::move(slots->fd),
                         .client_ring_fd = std::move(*client_ring),
                         .client_slot_fd = std::move(*client_slots),
                         .request_event = std::move(*request_event),
                         .ring = std::move(ring->mapping),
                         .slots = std::move(slots->mapping)};
}

// A write lease is granted only if nobody else has the file open; see fcntl(2). The kernel does not count a memfd's own
// descriptor and the mappings made from it, so ours do not matter.
bool is_released(const FileDescriptor& fd) {
    const auto probe = reopen(fd, O_RDONLY);
    if (!probe) return false;
    return ::fcntl(probe->get(), F_SETLEASE, F_WRLCK) == 0;
}

std::shared_ptr<const SlotKeeper::Slots> SlotKeeper::keep(Mapping slots, FileDescriptor slot_fd, FileDescriptor ring_fd,
                                                          std::function<void()> on_unmapped,
                                                          std::function<void()> on_released) {
    auto* kept = new Slots{std::move(slots), std::move(slot_fd), std::move(ring_fd)};
    return {kept, [this, on_unmapped = std::move(on_unmapped), on_released = std::move(on_released)](Slots* ended) {
                thread_.post([this, ended, on_unmapped, on_released] {
                    lingering_.push_back({std::move(ended->slot_fd), std::move(ended->ring_fd), on_released});
                    delete ended;
                    on_unmapped();
                    erase_released();
                });
            }};
}

void SlotKeeper::find_released() {
    thread_.post([this] { erase_released(); });
}

void SlotKeeper::erase_released() {
    std::erase_if(lingering_, [](const Lingering& memory) {
        if (!is_released(memory.slot_fd) || !is_released(memory.ring_fd)) return false;
        memory.on_released();
        return true;
    });
}

// Used on the keeper's thread only.
struct SlotKeeper::Population {
    std::weak_ptr<const Slots> slots;
    Populated populated;
    std::size_t done_bytes = 0;
    std::size_t target_bytes = 0;

    void populate_piece(const Slots& memory);
};

std::function<void(std::uint64_t)> SlotKeeper::populator(const std::shared_ptr<const Slots>& slots,
                                                         Populated populated) {
    auto population = std::make_shared<Population>(Population{slots, std::move(populated)});
    return [this, population](std::uint64_t bytes) {
        thread_.post([this, population, bytes] {
            const bool is_populating = population->done_bytes < population->target_bytes;
            population->target_bytes = std::max<std::size_t>(population->target_bytes, bytes);
            if (!is_populating && population->done_bytes < population->target_bytes) populate_next_piece(population);
        });
    };
}

// Populates the next piece, with a huge page if the kernel gives one. If the kernel refuses memory, pages are populated
// one by one when written, which costs only speed.
void SlotKeeper::Population::populate_piece(const Slots& memory) {
    std::byte* const piece = memory.mapping.data() + done_bytes;
    const std::size_t bytes = std::min(kHugePageBytes, memory.mapping.size() - done_bytes);
    if (bytes != kHugePageBytes || !back_with_huge_page(piece)) {
        // Allocate the file's pages first, then the page tables: this takes half the time of faulting in both at once.
        const auto offset = static_cast<off_t>(done_bytes);
        if (::fallocate(memory.slot_fd.get(), 0, offset, static_cast<off_t>(bytes)) == 0) {
            ::madvise(piece, bytes, MADV_POPULATE_WRITE);
        }
    }
    done_bytes += bytes;
}

void SlotKeeper::populate_next_piece(std::shared_ptr<Population> population) {
    const auto slots = population->slots.lock();
    if (slots == nullptr) return;
    population->target_bytes = std::min(population->target_bytes, slots->mapping.size());
    population->populate_piece(*slots);
    const bool settled = population->done_bytes >= population->target_bytes;
    population->populated(population->done_bytes, settled);
    if (!settled)
        thread_.post(
            [this, population = std::move(population)]() mutable { populate_next_piece(std::move(population)); });
}

}  // namespace larder::cache
