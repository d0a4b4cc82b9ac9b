#pragma once

// Serves this node's cached blocks to its peers over HTTP, on a thread of its own:
//
//   GET /v1/peers/DATASET/FINGERPRINT/blocks?since=STATE   which blocks are held (held_answer.h)
//   GET /v1/peers/DATASET/FINGERPRINT/blocks/INDEX         one of them: a record (record.h), decompressed; 404 when it
//   is
//                                                          not held any more
//
//   POST /v1/peers/DATASET/FINGERPRINT/blocks/INDEX        takes the record into the cache: 204, or 404 where there is
//   no
//                                                          room for it or it is there already
//
// Nothing is ever fetched for a peer, and nothing it holds is given up for one. Whoever asks must show the cluster's
// token; what a dataset's mode says counts on the node where the job runs, so the token is worth as much as all that is
// cached.

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
    std::string token;             // empty: none is asked for
    std::string certificate_file;  // empty: without TLS
    std::string key_file;
    std::size_t connections_max = 1024;
    std::uint64_t lent_bytes_max = std::uint64_t{256} << 20;  // on their way at one time; more is refused with 503
};

class PeerServer {
public:
    // `datasets` and their shards must outlive it.
    static Result<std::unique_ptr<PeerServer>> start(const PeerServerOptions& options, const PeerDatasets& datasets);
    // What is lent by then stays lent: the shards are to stop next.
    ~PeerServer();

    std::uint16_t port() const;

private:
    struct State;
    explicit PeerServer(std::shared_ptr<State> state);
    std::shared_ptr<State> state_;  // shards that still answer keep it
};

}  // namespace larder::cache
