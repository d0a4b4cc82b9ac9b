#include "base/server/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/file.h"

namespace larder {

Result<std::string> read_private_file(const std::string& file, std::string_view noun) {
    const auto opened = open_file(file, O_RDONLY);
    if (!opened) return std::unexpected(opened.error().within(std::string(noun)));
    struct stat status{};
    if (::fstat(opened->get(), &status) != 0) return fail_errno(errno, std::string(noun) + " " + file);
    if ((status.st_mode & 0027) != 0) {
        return fail(
            ErrorCode::permission_denied,
            std::string(noun) + " " + file + " can be read or changed by others than its owner: chmod 0600 " + file);
    }
    auto text = read_file(file);
    if (!text) return std::unexpected(text.error().within(std::string(noun)));
    return text;
}

}  // namespace larder
