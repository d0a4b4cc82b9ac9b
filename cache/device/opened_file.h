#pragma once

// The devices check a descriptor here after they opened it with O_NONBLOCK.

#include <cstdint>

namespace larder::cache {

// Takes the result of an open with O_NONBLOCK and returns the result to report. Closes a FIFO or a terminal and returns
// -ESPIPE. Clears O_NONBLOCK again: with it, io_uring's reads from some file systems fail where the kernel has to wait.
std::int32_t check_opened(std::int32_t result);

}  // namespace larder::cache
