#include "base/huge_pages.h"

#include <sys/mman.h>

namespace larder {
namespace {

#ifdef MADV_COLLAPSE
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;
#endif

}  // namespace

bool back_with_huge_page(std::byte* at) {
    // The kernel cannot collapse a range that has no page yet; one page is enough.
    return ::madvise(at, kPageBytes, MADV_POPULATE_WRITE) == 0 && ::madvise(at, kHugePageBytes, kCollapse) == 0;
}

}  // namespace larder
