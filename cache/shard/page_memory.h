#pragma once

// Memory in whole pages, as direct I/O needs it.

#include <cstddef>
#include <memory>
#include <new>

#include "base/huge_pages.h"

namespace larder::cache {

struct FreePages {
    void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{kPageBytes}); }
};
using PageMemory = std::unique_ptr<std::byte[], FreePages>;

// Fails as `new` does: where exit_when_out_of_memory() is in force, it ends the program.
inline PageMemory allocate_pages(std::size_t bytes) {
    return PageMemory(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kPageBytes})));
}

}  // namespace larder::cache
