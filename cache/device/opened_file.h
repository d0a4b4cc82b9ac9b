#pragma once

// The devices open files with O_NONBLOCK, so that opening a FIFO does not block, and then check the descriptor here.

#include <cstdint>

namespace larder::cache {

// Takes the result of an open with O_NONBLOCK and returns the result to report. Closes a FIFO or a terminal and returns
// -ESPIPE. Clears O_NONBLOCK, with which io_uring's reads from some file systems fail when the kernel has to wait.
std::int32_t check_opened(std::int32_t result);

}  // namespace larder::cache
