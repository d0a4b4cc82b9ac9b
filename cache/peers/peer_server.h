#pragma once

// Serves this node's cached blocks to its peers over HTTP, on a thread of its own:
//
//   GET /v1/peers/DATASET/FINGERPRINT/blocks?since=STATE
//     Lists the blocks that this node holds (held_answer.h).
//   GET /v1/peers/DATASET/FINGERPRINT/blocks/INDEX
//     Returns one block as a record (record.h), decompressed. 404 if the block is not held any more.
//   POST /v1/peers/DATASET/FINGERPRINT/blocks/INDEX
//     Admits the record to the cache. 204, or 404 if there is no room for it or the block is cached already.
//
// The server never fetches or evicts a block for a peer. Every request must carry the cluster's token. A dataset's mode
// is checked only on the node where the job runs, so the token gives access to everything that is cached.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/server/tls.h"
#include "cache/peers/peer_datasets.h"

namespace larder::cache {

struct PeerServerOptions {
    std::string listen;            // "0.0.0.0:7474"; port 0 takes a free one
    std::string token;             // empty: no token is required
    std::string certificate_file;  // empty: without TLS
    std::string key_file;
    std::size_t connections_max = 1024;
    std::uint64_t lent_bytes_max = std::uint64_t{256} << 20;  // in flight at one time; more is refused with 503
};

class PeerServer {
public:
    // `datasets` and their shards must outlive the PeerServer.
    static Result<std::unique_ptr<PeerServer>> start(const PeerServerOptions& options, const PeerDatasets& datasets);
    // Blocks may still be lent when this returns. The shards must stop next.
    ~PeerServer();

    std::uint16_t port() const;

private:
    struct State;
    explicit PeerServer(std::shared_ptr<State> state);
    std::shared_ptr<State> state_;  // shared with calls in flight on the shards
};

}  // namespace larder::cache
