#pragma once

// Who holds what: asks each peer about once a second which blocks of this node's datasets it holds, and hands what they
// say to the shards (PeerBlocks). A peer that does not answer holds nothing until it does. Which peers there are comes
// from the config or from the allocator. Has a thread of its own.

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

// What is known of one peer.
struct PeerStatus {
    std::string endpoint;
    bool answers = false;
    std::string problem;            // why not; empty before it was asked
    std::uint64_t held_blocks = 0;  // of our datasets, as it said
    std::uint64_t room_bytes = 0;   // free of its quotas for them
};

class PeerDirectory {
public:
    static constexpr std::int64_t kPeriod_ns = 1'000'000'000;

    // All must outlive it, the shards of `datasets` too.
    PeerDirectory(const PeerDatasets& datasets, HttpTransfers& transfers, std::string token);
    ~PeerDirectory();

    // Any thread. "http://HOST:PORT" or "https://HOST:PORT" of each; more than kPeersMax are cut off.
    void set_peers(std::vector<std::string> endpoints);
    std::vector<PeerStatus> status() const;

private:
    struct Peer {
        std::shared_ptr<const PeerOrigin> origin;
        PeerStatus status;
    };
    // What one peer said of one dataset.
    struct Said {
        HeldState state;
        std::uint64_t room_bytes = 0;
        std::vector<std::uint8_t> bits;
    };
    // What the shard was given of one dataset, and which of our own blocks it was made beside.
    struct Given {
        std::shared_ptr<const PeerBlocks> blocks;
        std::vector<std::string> endpoints;
        std::shared_ptr<const HeldBlocks> own;
        std::uint64_t own_changes = 0;
    };
    struct Asking;
    using Key = std::pair<std::string, std::string>;  // endpoint, dataset's name and fingerprint

    void run();
    void ask_all();
    bool take(Asking& asking, Peer& peer);
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

    // The thread's own.
    std::map<std::string, Peer> peers_;  // by endpoint
    std::map<Key, Said> said_;
    std::map<std::string, Given> given_;  // by dataset and fingerprint
    std::thread thread_;
};

}  // namespace larder::cache
