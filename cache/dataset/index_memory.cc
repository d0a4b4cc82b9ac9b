#include "cache/dataset/index_memory.h"

#include <new>

#include "base/assert.h"
#include "base/machine_memory.h"
#include "base/units.h"

namespace larder::cache {

std::uint64_t index_bytes_max() {
    return machine_memory().bytes / 4;
}

std::unexpected<Error> index_too_large(std::uint64_t bytes_max) {
    return fail(ErrorCode::unsupported,
                "the index takes more than " + format_bytes(bytes_max, UnitFamily::binary) +
                    " of memory, a quarter of what there is: divide the dataset, or index it on a machine with more");
}

// Boost.JSON gives back some memory with another alignment than it asked for. It never needs more than the default.
void* BoundedJsonMemory::do_allocate(std::size_t bytes, std::size_t alignment) {
    LARDER_ASSERT(alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    if (bytes > left_bytes_) throw std::bad_alloc();
    void* const place = ::operator new(bytes);
    left_bytes_ -= bytes;
    return place;
}

void BoundedJsonMemory::do_deallocate(void* place, std::size_t bytes, std::size_t /*alignment*/) {
    ::operator delete(place, bytes);
    left_bytes_ += bytes;
}

}  // namespace larder::cache
