#pragma once

// The devices open files with O_NONBLOCK, so that opening a FIFO does not block, and then check the descriptor here.

#include <cstdint>

namespace larder::cache {

// Takes the result of an open with O_NONBLOCK and returns the result to report. Closes a FIFO or a terminal and returns
// -ESPIPE. Clears O_NONBLOCK, with which io_uring's reads from some file systems fail when the kernel has to wait.
std::int32_t check_opened(std::int32_t result);

// Returns the flags with O_NONBLOCK, which openat2 refuses beside O_PATH. An open with O_PATH never blocks on a FIFO.
int with_nonblock(int flags);

}  // namespace larder::cache
