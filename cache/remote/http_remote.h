#pragma once

// The Remote of an http(s):// or s3:// URL. Each read becomes one GET of the process's HttpTransfers. The transfers'
// thread copies the bytes straight into the read's memory and hands the read back. An eventfd wakes the data-plane
// thread once for all reads that have ended since it last looked.

#include <memory>
#include <string>

#include "cache/device.h"
#include "cache/remote.h"
#include "cache/remote/http_transfers.h"
#include "cache/remote/peer_remote.h"
#include "cache/remote/remote_problems.h"

namespace larder::cache {

struct HttpRoot {
    std::shared_ptr<const HttpOrigin> origin;
    std::string url;  // percent-encoded, no trailing slash; the URL of an object is url + "/" + its encoded path
};

// `device` and `transfers` must outlive the remote. Failed reads are logged and noted in `problems`.
Result<std::unique_ptr<Remote>> make_http_remote(HttpRoot root, Device& device, HttpTransfers& transfers,
                                                 std::shared_ptr<RemoteProblems> problems);
// Makes the remote of a peer. Failed reads are not logged, because the caller counts them and reads from the remote.
Result<std::unique_ptr<PeerRemote>> make_http_peer(HttpRoot root, Device& device, HttpTransfers& transfers);

}  // namespace larder::cache
