#pragma once

// What the devices do with a descriptor that they opened with O_NONBLOCK.

#include <cstdint>

namespace larder::cache {

// Takes the result of an open, with O_NONBLOCK, and gives the one to tell. A FIFO or a terminal is closed: -ESPIPE. The
// flag was for open alone: with it, io_uring's reads from some file systems fail where the kernel would have to wait.
std::int32_t check_opened(std::int32_t result);

}  // namespace larder::cache
