#pragma once

// The Remote of an http(s):// or s3:// URL: each read becomes one GET of the process's HttpTransfers, whose thread puts
// the bytes straight into the read's memory and hands it back; the data-plane thread learns of it through an eventfd,
// one wake-up for all that has ended meanwhile.

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
    std::string url;  // percent-encoded, without a slash at the end: objects are url + "/" + their encoded path
};

// `device` and `transfers` must outlive it. What fails is logged and noted in `problems`.
Result<std::unique_ptr<Remote>> make_http_remote(HttpRoot root, Device& device, HttpTransfers& transfers,
                                                 std::shared_ptr<RemoteProblems> problems);
// Of a peer. What fails is not logged: it is read from the remote instead, and counted.
Result<std::unique_ptr<PeerRemote>> make_http_peer(HttpRoot root, Device& device, HttpTransfers& transfers);

}  // namespace larder::cache
