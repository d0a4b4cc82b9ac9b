#include "base/heap.h"

#include <malloc.h>

namespace larder {

void keep_freed_memory() {
    constexpr int kTrimBytes = 256 << 20;
    constexpr int kMapBytes = 32 << 20;  // the most glibc accepts
    ::mallopt(M_TRIM_THRESHOLD, kTrimBytes);
    ::mallopt(M_MMAP_THRESHOLD, kMapBytes);
}

}  // namespace larder
