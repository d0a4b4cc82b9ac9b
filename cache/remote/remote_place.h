#pragma once

// Where a dataset lies, found once and then used from both sides: its objects, for indexing, and its blocks, for the
// data plane. Opening looks for credentials and so may block for some seconds; nothing else here does.

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "cache/object_source.h"
#include "cache/remote.h"
#include "cache/remote/http_origin.h"
#include "cache/remote/remote_options.h"
#include "cache/remote/remote_problems.h"
#include "cache/remote/remote_url.h"

namespace larder::cache {

class RemotePlace {
public:
    // `transfers` may be null for file:// and must outlive the place and what it makes.
    static Result<std::shared_ptr<const RemotePlace>> open(std::string_view url, const RemoteOptions& options,
                                                           HttpTransfers* transfers);

    const RemoteUrl& url() const { return url_; }
    // As HttpOutage names it; empty: it is not reached over HTTP.
    std::string endpoint() const { return http_ ? http_->origin->endpoint() : std::string(); }
    // Whatever waits for the network there fails with ErrorCode::cancelled once `stop` is asked for.
    std::unique_ptr<ObjectSource> objects(std::stop_token stop = {}) const;
    // On the thread of `device`, which must outlive it.
    Result<std::unique_ptr<Remote>> remote(Device& device) const;
    // Why the latest reads by those remotes failed.
    const RemoteProblems& problems() const { return *problems_; }

private:
    RemotePlace() = default;

    RemoteUrl url_;
    std::optional<HttpRoot> http_;
    HttpTransfers* transfers_ = nullptr;
    std::shared_ptr<RemoteProblems> problems_ = std::make_shared<RemoteProblems>();
};

}  // namespace larder::cache
