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

bool back_with_huge_page(std::byte* address) {
    // The kernel cannot collapse a range that has no page yet; one page is enough.
    return ::madvise(address, kPageBytes, MADV_POPULATE_WRITE) == 0 &&
           ::madvise(address, kHugePageBytes, kCollapse) == 0;
}

}  // namespace larder
