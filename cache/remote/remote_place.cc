#include "cache/remote/remote_place.h"

#include <cerrno>

#include "cache/remote/file_objects.h"
#include "cache/remote/file_remote.h"
#include "cache/remote/http_objects.h"
#include "cache/remote/http_remote.h"

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

Result<std::shared_ptr<const RemotePlace>> RemotePlace::open(std::string_view url, const RemoteOptions& options,
                                                             HttpTransfers* transfers) {
    auto parsed = parse_remote_url(url);
    if (!parsed) return std::unexpected(parsed.error());
    auto place = std::shared_ptr<RemotePlace>(new RemotePlace);
    place->url_ = std::move(*parsed);
    place->transfers_ = transfers;
    place->follow_symlinks_ = options.follow_symlinks;
    if (place->url_.scheme == RemoteScheme::file) {
        if (options != RemoteOptions{.follow_symlinks = options.follow_symlinks}) {
            return fail(
                ErrorCode::invalid_argument,
                "remote \"" + std::string(url) + "\" takes no endpoint, region, profile or other option of a store");
        }
        return place;
    }
    if (transfers == nullptr) {
        return fail(ErrorCode::unsupported,
                    "remote \"" + std::string(url) + "\" needs the network, which is not open here");
    }
    auto root = make_http_root(place->url_, options);
    if (!root) return std::unexpected(root.error().within("remote \"" + std::string(url) + "\""));
    place->http_ = std::move(*root);
    return place;
}

std::unique_ptr<ObjectSource> RemotePlace::objects(std::stop_token stop) const {
    if (http_) return make_http_objects(url_, *http_, *transfers_, std::move(stop));
    return make_file_objects(url_.root, follow_symlinks_);
}

Result<RemotePlace::Reached> RemotePlace::reach() const {
    if (http_) return Reached{};
    auto root = find_file_root(url_.root, follow_symlinks_);
    if (root) return Reached{.file_root = std::move(*root)};
    const Error& error = root.error();
    return std::unexpected(
        Error{error.code, "remote \"" + url_.text() + "\": " + explain(url_.root, error), error.system_errno});
}

Result<std::unique_ptr<Remote>> RemotePlace::remote(Device& device, const Reached& reached) const {
    if (http_) return make_http_remote(*http_, device, *transfers_, problems_);
    return make_file_remote_at(reached.file_root, device, {.follow_symlinks = follow_symlinks_, .problems = problems_});
}

Result<std::unique_ptr<Remote>> RemotePlace::remote(Device& device) const {
    const auto reached = reach();
    if (!reached) return std::unexpected(reached.error());
    return remote(device, *reached);
}

}  // namespace larder::cache
