#include "cache/store/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/huge_pages.h"

namespace larder::cache {

Result<std::unique_ptr<Segment>> make_memory_segment(std::uint32_t id, std::uint64_t size_bytes) {
    auto segment = std::make_unique<Segment>();
    segment->fd_ = FileDescriptor(::memfd_create("larder-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!segment->fd_) return fail_errno(errno, "memfd_create for a memory segment");
    const int fd = segment->fd_.get();
    if (::ftruncate(fd, static_cast<off_t>(size_bytes)) != 0) {
        return fail_errno(errno, "size a memory segment of " + std::to_string(size_bytes) + " bytes");
    }
    auto memory = Mapping::of(fd, size_bytes, Mapping::Access::read_write);
    if (!memory) return std::unexpected(memory.error());
    // Seals after mapping: the daemon's own mapping stays writable, and any later writable mapping is refused.
    if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
        return fail_errno(errno, "seal a memory segment");
    }
    segment->id_ = id;
    segment->tier_ = Tier::memory;
    segment->alignment_ = kMemoryAlignment;
    segment->size_bytes_ = size_bytes;
    segment->memory_ = std::move(*memory);
    return segment;
}

void Segment::back_memory(std::uint64_t end) {
    while (backed_bytes_ < end && backed_bytes_ + kHugePageBytes <= size_bytes_) {
        // If a huge page is refused, small pages are used as they are written.
        back_with_huge_page(memory_.data() + backed_bytes_);
        backed_bytes_ += kHugePageBytes;
    }
}

}  // namespace larder::cache
