#pragma once

// Serves this node's cached blocks to its peers over HTTP, on a thread of its own. PeerServer::routes() has the routes;
// docs/openapi/peers.yaml describes them, and a test compares the two.
//
// The server never fetches or evicts a block for a peer. It takes an offered block only if the block's digest is
// trusted here (peers.h). Every request must carry the cluster's token. A dataset's mode is checked only on the node
// where the job runs, so the token gives access to everything that is cached.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/server/http.h"
#include "base/server/tls.h"
#include "cache/peers/peer_datasets.h"

namespace larder::cache {

struct PeerServerOptions {
    std::string listen;            // "0.0.0.0:7474"; port 0 takes a free one
    std::string token;             // not empty
    std::string certificate_file;  // empty: without TLS
    std::string key_file;
    bool needs_digests = true;  // false: offered blocks are taken unchecked, except for the manifest's checksums
    std::size_t connections_max = 1024;
    std::size_t connections_per_peer_max = 128;               // of one host, so that no peer locks the others out
    std::uint64_t lent_bytes_max = std::uint64_t{256} << 20;  // in flight at one time; more is refused with 503
};

class PeerServer {
    struct State;
    struct Asked;

public:
    struct Route {
        std::string_view method;
        std::string_view path;   // "/v1/peers/{dataset}/{fingerprint}/blocks"
        std::string_view query;  // the accepted query keys, separated by a space
        void (State::*answer)(const Asked& asked, const HttpRespond& respond);
    };
    static std::span<const Route> routes();

    // `datasets` and their shards must outlive the PeerServer.
    static Result<std::unique_ptr<PeerServer>> start(const PeerServerOptions& options, const PeerDatasets& datasets);
    // Blocks may still be lent when this returns. The shards must stop next.
    ~PeerServer();

    std::uint16_t port() const;

private:
    explicit PeerServer(std::shared_ptr<State> state);
    std::shared_ptr<State> state_;  // shared with calls in flight on the shards
};

}  // namespace larder::cache
