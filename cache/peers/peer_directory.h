#pragma once

// A PeerDirectory knows which blocks each peer holds. It asks each peer about once a second which blocks of this node's
// datasets the peer holds, and which digests of blocks it took from the remote. It passes the answers to the shards
// (PeerBlocks): a block counts as held by a peer only if its digest is trusted here (witnesses.h). A peer that does not
// answer, or that sent wrong bytes, counts as holding nothing. The list of peers comes from the config or from the
// allocator. Runs a thread of its own.

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cache/peers/digests_answer.h"
#include "cache/peers/held_answer.h"
#include "cache/peers/peer_datasets.h"
#include "cache/peers/peer_origin.h"
#include "cache/peers/witnesses.h"
#include "cache/remote/http_transfers.h"
#include "cache/shard/peer_blocks.h"

namespace larder::cache {

struct PeerAddress {
    std::string node;  // its name; empty: not known
    std::string endpoint;
    bool is_witness = true;  // its digests count

    bool operator==(const PeerAddress&) const = default;
};

// The state of one peer.
struct PeerStatus {
    std::string node;  // empty: not known
    std::string endpoint;
    bool answers = false;
    std::string problem;            // why the peer is not read from; empty before it was asked
    std::uint64_t held_blocks = 0;  // of our datasets, as the peer reported
    std::uint64_t room_bytes = 0;   // free in the peer's quotas for our datasets
};

class PeerDirectory {
public:
    static constexpr std::int64_t kPeriod_ns = 1'000'000'000;
    // A peer that does not answer is asked after 1, 2, 4 and then every 8 periods.
    static constexpr unsigned kFailuresCounted = 3;

    // `datasets`, its shards and `transfers` must outlive the PeerDirectory. `witnesses` as in PeersOptions.
    PeerDirectory(const PeerDatasets& datasets, HttpTransfers& transfers, std::string token, unsigned witnesses);
    ~PeerDirectory();

    // Any thread. A peer whose endpoint is not "http://HOST:PORT" or "https://HOST:PORT" is not asked; its status says
    // why. Peers beyond kPeersMax are ignored.
    void set_peers(std::vector<PeerAddress> addresses);
    std::vector<PeerStatus> status() const;

private:
    struct Peer {
        std::shared_ptr<const PeerOrigin> origin;  // null: the endpoint is none
        std::shared_ptr<PeerConduct> conduct;
        Witnesses::Node number = 0;
        bool is_witness = true;
        unsigned failures = 0;  // in turn
        std::int64_t ask_from_ns = 0;
        PeerStatus status;
    };
    // The last answer of one peer about one dataset.
    struct LastAnswer {
        HeldState state;
        std::uint64_t room_bytes = 0;
        std::vector<std::uint8_t> bits;
    };
    // The peers' claims on the digests of one dataset.
    struct Claims {
        Witnesses witnesses;
        std::map<std::string, HeldState> states;  // of the last answer, by endpoint
    };
    // The last PeerBlocks given to the shard for one dataset, and the endpoints and own blocks it was made from.
    struct LastHandover {
        std::shared_ptr<const PeerBlocks> blocks;
        std::vector<std::string> endpoints;
        std::shared_ptr<const HeldBlocks> own;
        std::uint64_t own_changes = 0;
        std::uint64_t own_digests = 0;
    };
    struct PeerQuery;
    using Key = std::pair<std::string, std::string>;  // endpoint, dataset's name and fingerprint

    void run();
    void take_addresses();
    Claims& claims_of(const PeerDataset& dataset);
    void ask_all();
    bool take_answer(PeerQuery& query, Peer& peer);
    bool take_digests(PeerQuery& query, const Peer& peer);
    void hand_over(const PeerDataset& dataset, const std::vector<std::string>& endpoints, bool changed);
    PeerBlocks blocks_of(const PeerDataset& dataset, const std::vector<std::string>& endpoints, const HeldBlocks& own,
                         const ReadDigests* own_digests);
    std::vector<BlockDigest> trusted_digests(const PeerDataset& dataset, const ReadDigests* own_digests);
    void publish_status();

    const PeerDatasets& datasets_;
    HttpTransfers& transfers_;
    const std::string token_;
    const unsigned witnesses_;
    const SteadyClock clock_;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<PeerAddress> addresses_;
    std::vector<PeerStatus> status_;
    bool stopping_ = false;

    // Used only by the directory's thread.
    std::map<std::string, Peer> peers_;  // by endpoint
    // The numbers of all peers ever named, by endpoint, so that a peer that comes back is known. Endpoints beyond the
    // last number are no witnesses.
    std::map<std::string, Witnesses::Node> numbers_;
    std::map<std::string, std::shared_ptr<PeerConduct>> conducts_;
    std::map<std::string, Claims> claims_;  // by dataset and fingerprint
    std::map<Key, LastAnswer> last_answers_;
    std::map<std::string, LastHandover> last_handovers_;  // by dataset and fingerprint
    std::thread thread_;
};

}  // namespace larder::cache
