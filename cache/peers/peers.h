#pragma once

// This node among its peers: lends what it caches (PeerServer) and reads what they cache (PeerDirectory). Both are off
// until they are asked for: lending by an address to listen on, reading by peers to read from.

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
    std::string listen;               // "IP:PORT"; empty: nothing is lent
    std::string endpoint;             // where peers reach us; empty: made of `listen` and the host's name
    std::vector<std::string> others;  // endpoints that are always asked
    std::string token_file;           // its first line; empty: none
    std::string certificate_file;
    std::string key_file;
};

class Peers {
public:
    // `transfers` must outlive it and the shards that read through it.
    static Result<std::unique_ptr<Peers>> start(const PeersOptions& options, HttpTransfers& transfers);
    // Before the shards go.
    ~Peers();

    // Any thread: the datasets that are lent and read from now on.
    void set_datasets(std::vector<PeerDataset> datasets) { datasets_.set(std::move(datasets)); }
    // Any thread: who is asked, besides those of the options. Our own endpoint is passed over.
    void set_others(std::vector<std::string> endpoints);

    // Where peers reach us; empty: nothing is lent.
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

// What requests to peers keep to: a block that does not come soon is read from the remote instead.
HttpTransfersOptions peer_transfers_options(const std::string& ca_file);

}  // namespace larder::cache
