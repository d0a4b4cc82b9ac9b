#include "base/server/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
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
    // The path may name another file by now.
    auto text = read_all(*opened, file);
    if (!text) return std::unexpected(text.error().within(std::string(noun)));
    return text;
}

Result<std::string> read_private_line(const std::string& file, std::string_view noun) {
    auto text = read_private_file(file, noun);
    if (!text) return text;
    text->resize(std::min(text->find_first_of("\r\n"), text->size()));
    if (text->empty()) {
        return fail(ErrorCode::invalid_argument, "the first line of " + std::string(noun) + " " + file + " is empty");
    }
    return text;
}

}  // namespace larder
