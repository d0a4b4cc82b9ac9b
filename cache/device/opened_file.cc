#include "cache/device/opened_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace larder::cache {

std::int32_t check_opened(std::int32_t result) {
    if (result < 0) return result;
    if (::lseek(result, 0, SEEK_CUR) < 0 && errno == ESPIPE) {
        ::close(result);
        return -ESPIPE;
    }
    const int flags = ::fcntl(result, F_GETFL);
    if (flags >= 0) ::fcntl(result, F_SETFL, flags & ~O_NONBLOCK);
    return result;
}

int with_nonblock(int flags) {
    return (flags & O_PATH) != 0 ? flags : flags | O_NONBLOCK;
}

}  // namespace larder::cache
