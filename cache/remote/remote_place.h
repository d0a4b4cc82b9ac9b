#pragma once

// The place of a dataset: the parsed URL and the credentials, found once. Indexing gets an ObjectSource from the place,
// the data plane a Remote. `open` may block for some seconds to look for credentials, and `reach` for ever on a mount
// that hangs; nothing else here blocks.

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "cache/remote.h"
#include "cache/remote/http_origin.h"
#include "cache/remote/object_source.h"
#include "cache/remote/remote_options.h"
#include "cache/remote/remote_problems.h"
#include "cache/remote/remote_url.h"

namespace larder::cache {

class RemotePlace {
public:
    // `transfers` must outlive the place and all that the place makes. May be null for file://.
    static Result<std::shared_ptr<const RemotePlace>> open(std::string_view url, const RemoteOptions& options,
                                                           HttpTransfers* transfers);

    const RemoteUrl& url() const { return url_; }
    // HttpOutage::endpoint of this place; empty if the place is not reached over HTTP.
    std::string endpoint() const { return http_ ? http_->origin->endpoint() : std::string(); }
    // Network waits of the source fail with ErrorCode::cancelled after a stop request.
    std::unique_ptr<ObjectSource> objects(std::stop_token stop = {}) const;
    // The facts that a remote needs before it can be made.
    struct Reached {
        std::string file_root;  // see find_file_root; empty if the place is not a directory
    };
    // Looks for the place. Blocks, and on a hung mount for ever. Any thread.
    Result<Reached> reach() const;
    // Call on the thread of `device`. `device` must outlive the remote. Destroy a remote only when none of its reads is
    // running, or after Device::stop.
    Result<std::unique_ptr<Remote>> remote(Device& device, const Reached& reached) const;
    // Calls `reach` first.
    Result<std::unique_ptr<Remote>> remote(Device& device) const;
    // The reason why the latest reads of the place's remotes failed.
    const RemoteProblems& problems() const { return *problems_; }

private:
    RemotePlace() = default;

    RemoteUrl url_;
    std::optional<HttpRoot> http_;
    HttpTransfers* transfers_ = nullptr;
    bool follow_symlinks_ = false;  // RemoteOptions::follow_symlinks
    std::shared_ptr<RemoteProblems> problems_ = std::make_shared<RemoteProblems>();
};

}  // namespace larder::cache
