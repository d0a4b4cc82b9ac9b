#include "cache/dataset/dataset_root.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "cache/dataset/index_webdataset.h"
#include "cache/remote/remote_place.h"

namespace larder::cache {
namespace {

Error root_error(const std::string& path, int system_errno) {
    Error error = errno_error(system_errno, path);
    if (system_errno == ENOENT) error.message = "there is no file or directory " + path + " on this machine";
    // "s3:/bucket", a URL with one slash missing, is parsed as a path.
    if (system_errno == ENOENT && path.find(":/") != std::string::npos)
        error.message += "; a URL has two slashes after :";
    if (system_errno == EACCES)
        error.message += "; the user who indexes the dataset, the daemon's user, needs access to its directories";
    return error;
}

}  // namespace

Result<DatasetRoot> find_dataset_root(const IndexRequest& request) {
    auto url = parse_remote_url(request.definition.url);
    if (!url) return std::unexpected(url.error());
    std::string directory = request.definition.url;
    DatasetRoot root{.only_shard = url->only_shard};
    if (url->scheme == RemoteScheme::file) {
        struct stat status{};
        if (::stat(url->root.c_str(), &status) != 0) return std::unexpected(root_error(url->root, errno));
        if (S_ISREG(status.st_mode)) {
            // Objects are named relative to the URL, so the URL becomes the directory of the tar.
            const std::filesystem::path file(url->root);
            root.only_shard = file.filename().string();
            directory = file.parent_path().string();
            if (!is_shard_name(root.only_shard) && !is_compressed_shard_name(root.only_shard)) {
                return fail(ErrorCode::invalid_argument, url->root +
                                                             " is a file, and a dataset is a directory or a "
                                                             ".tar: give the directory, " +
                                                             directory);
            }
        }
    }
    auto place = RemotePlace::open(directory, request.definition.remote, request.transfers);
    if (!place) return std::unexpected(place.error());
    root.place = std::move(*place);
    return root;
}

}  // namespace larder::cache
