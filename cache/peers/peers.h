#pragma once

// Shares cached blocks with other nodes: lends this node's blocks (PeerServer) and reads blocks that peers hold
// (PeerDirectory). Both are off by default: a listen address turns on lending, and peers to read from turn on reading.
//
// Peers are not trusted. A block is read from a peer only if this node knows the block's digest: from its own earlier
// read of the remote, or from as many other nodes as `witnesses` says (witnesses.h). A peer that sends other bytes is
// not read from for a while (peer_conduct.h).

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/peers/peer_datasets.h"
#include "cache/peers/peer_directory.h"
#include "cache/peers/peer_server.h"
#include "cache/remote/http_transfers.h"

namespace larder::cache {

struct PeersOptions {
    std::string listen;                // "IP:PORT"; empty: nothing is lent
    std::string endpoint;              // where peers reach us; empty: made from `listen` and the host's name
    std::vector<std::string> others;   // endpoints that are always asked
    std::string token_file;            // holds the token in its first line; required with `listen` or `others`
    unsigned witnesses = 2;            // nodes that must have read a block from the remote; 0: peers are trusted
    bool others_are_witnesses = true;  // false: only the peers of set_others are, so that no node counts twice
    std::string certificate_file;
    std::string key_file;
};

class Peers {
public:
    // `transfers` must outlive the Peers and the shards that read through it.
    static Result<std::unique_ptr<Peers>> start(const PeersOptions& options, HttpTransfers& transfers);
    // Destroy before the shards.
    ~Peers();

    // Any thread. Sets the datasets that are lent and read from now on.
    void set_datasets(std::vector<PeerDataset> datasets) { datasets_.set(std::move(datasets)); }
    // Any thread. Sets the peers to ask, besides those of the options. Ignores our own endpoint.
    void set_others(std::vector<PeerAddress> addresses);

    // Returns the URL at which peers reach this node; empty if the node lends nothing.
    const std::string& endpoint() const { return endpoint_; }
    std::vector<PeerStatus> status() const { return directory_->status(); }

private:
    explicit Peers(const PeersOptions& options) : options_(options) {}

    const PeersOptions options_;
    std::string endpoint_;
    PeerDatasets datasets_;
    std::unique_ptr<PeerServer> server_;
    std::unique_ptr<PeerDirectory> directory_;
};

// The limits of requests to peers. Timeouts are short, because a block that does not come soon is read from the remote
// instead.
HttpTransfersOptions peer_transfers_options(const std::string& ca_file);

}  // namespace larder::cache
