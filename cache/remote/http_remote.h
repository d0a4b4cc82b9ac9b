#pragma once

// The Remote of a URL that is reached over HTTP. Each read becomes one GET of the process's HttpTransfers. The
// transfers' thread copies the bytes straight into the read's memory and hands the read back. An eventfd wakes the
// data-plane thread once for all reads that have ended since it last looked.

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/server/percent_encoding.h"
#include "cache/device.h"
#include "cache/remote.h"
#include "cache/remote/bucket_listing.h"
#include "cache/remote/http_transfers.h"
#include "cache/remote/peer_remote.h"
#include "cache/remote/remote_problems.h"

namespace larder::cache {

struct HttpRoot {
    std::shared_ptr<const HttpOrigin> origin;
    std::string url;  // percent-encoded, no trailing slash; the URL of an object is url + "/" + its encoded path
    std::shared_ptr<const BucketListing> listing;  // null: the server cannot list its objects
};

// The root of the keys that begin with `prefix`/ (empty: of the whole bucket). `store` is both an HttpOrigin and a
// BucketListing.
template <typename Store>
HttpRoot bucket_root(const std::shared_ptr<const Store>& store, std::string bucket_url, std::string_view prefix) {
    if (!prefix.empty()) bucket_url += "/" + percent_encode_path(prefix);
    return {.origin = store, .url = std::move(bucket_url), .listing = store};
}

// `device` and `transfers` must outlive the remote. Failed reads are logged and noted in `problems`.
Result<std::unique_ptr<Remote>> make_http_remote(HttpRoot root, Device& device, HttpTransfers& transfers,
                                                 std::shared_ptr<RemoteProblems> problems);
// Makes the remote of a peer. Failed reads are not logged, because the caller counts them and reads from the remote.
Result<std::unique_ptr<PeerRemote>> make_http_peer(HttpRoot root, Device& device, HttpTransfers& transfers);

}  // namespace larder::cache
