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

}  // namespace larder::cache
