#include <cerrno>

#include "base/file_url.h"
#include "cache/remote/file_remote.h"

namespace larder::cache {

namespace {

std::string explain(const std::string& path, const Error& error) {
    switch (error.system_errno) {
        case ENOENT: return "the directory " + path + " does not exist here; is its file system mounted?";
        case ENOTDIR: return path + " is not a directory";
        case EACCES: return "the directory " + path + " may not be read by this user";
        default: return error.message;
    }
}

}  // namespace

Result<std::unique_ptr<Remote>> make_remote(std::string_view url, Device& device) {
    const auto path = path_of_file_url(url);
    if (!path) return std::unexpected(path.error());
    auto remote = make_file_remote(*path, device);
    if (!remote) {
        const Error& error = remote.error();
        return std::unexpected(
            Error{error.code, "remote \"" + std::string(url) + "\": " + explain(*path, error), error.system_errno});
    }
    return remote;
}

}  // namespace larder::cache
