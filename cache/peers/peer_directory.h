#pragma once

// A PeerDirectory knows which blocks each peer holds. It asks each peer about once a second which blocks of this node's
// datasets the peer holds, and passes the answers to the shards (PeerBlocks). A peer that does not answer counts as
// holding nothing. The list of peers comes from the config or from the allocator. Runs a thread of its own.

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/peers/held_answer.h"
#include "cache/peers/peer_datasets.h"
#include "cache/peers/peer_origin.h"
#include "cache/remote/http_transfers.h"
#include "cache/shard/peer_blocks.h"

namespace larder::cache {

// The state of one peer.
struct PeerStatus {
    std::string endpoint;
    bool answers = false;
    std::string problem;            // why the peer does not answer; empty before it was asked
    std::uint64_t held_blocks = 0;  // of our datasets, as the peer reported
    std::uint64_t room_bytes = 0;   // free in the peer's quotas for our datasets
};

class PeerDirectory {
public:
    static constexpr std::int64_t kPeriod_ns = 1'000'000'000;

    // `datasets`, its shards and `transfers` must outlive the PeerDirectory.
    PeerDirectory(const PeerDatasets& datasets, HttpTransfers& transfers, std::string token);
    ~PeerDirectory();

    // Any thread. Each endpoint is "http://HOST:PORT" or "https://HOST:PORT". Endpoints beyond kPeersMax are ignored.
    void set_peers(std::vector<std::string> endpoints);
    std::vector<PeerStatus> status() const;

private:
    struct Peer {
        std::shared_ptr<const PeerOrigin> origin;
        PeerStatus status;
    };
    // The last answer of one peer about one dataset.
    struct LastAnswer {
        HeldState state;
        std::uint64_t room_bytes = 0;
        std::vector<std::uint8_t> bits;
    };
    // The last PeerBlocks given to the shard for one dataset, and the endpoints and own blocks it was made from.
    struct LastHandover {
        std::shared_ptr<const PeerBlocks> blocks;
        std::vector<std::string> endpoints;
        std::shared_ptr<const HeldBlocks> own;
        std::uint64_t own_changes = 0;
    };
    struct PeerQuery;
    using Key = std::pair<std::string, std::string>;  // endpoint, dataset's name and fingerprint

    void run();
    void ask_all();
    bool take_answer(PeerQuery& asking, Peer& peer);
    void hand_over(const PeerDataset& dataset, const std::vector<std::string>& endpoints, bool changed);
    PeerBlocks blocks_of(const PeerDataset& dataset, const std::vector<std::string>& endpoints,
                         const HeldBlocks& own) const;

    const PeerDatasets& datasets_;
    HttpTransfers& transfers_;
    const std::string token_;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::string> endpoints_;
    std::vector<PeerStatus> status_;
    bool stopping_ = false;

    // Used only by the directory's thread.
    std::map<std::string, Peer> peers_;  // by endpoint
    std::map<Key, LastAnswer> last_answers_;
    std::map<std::string, LastHandover> last_handovers_;  // by dataset and fingerprint
    std::thread thread_;
};

}  // namespace larder::cache
