#pragma once

// Reads and offers blocks of another simulated node. Nothing is certain: the peer may not answer, and what it sends may
// be damaged.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cache/remote/peer_remote.h"
#include "tests/campaign/seeds/simulated_node.h"

namespace larder::campaign {

class PeerReads final : public cache::PeerRemote {
public:
    PeerReads(SimulatedDevice& device, const Surroundings& around, int own, int peer, std::string dataset,
              std::string fingerprint, bool checksums)
        : device_(device),
          around_(around),
          own_(own),
          peer_(peer),
          dataset_(std::move(dataset)),
          fingerprint_(std::move(fingerprint)),
          checksums_(checksums) {}

    void read(cache::RemoteRead& read) override;
    void offer(cache::RemoteRead& block) override;

private:
    static constexpr std::int64_t kTimeout_ns = 2 * kSecond_ns;

    struct Request : cache::Operation {
        PeerReads* reads = nullptr;
        cache::RemoteRead* read = nullptr;
        std::uint64_t number = 0;
        protocol::BlockStatus status = protocol::BlockStatus::remote_failed;
        std::string record;
        bool ended = false;
    };
    // Outlives this object, so that late answers find it gone.
    struct Requests {
        std::map<std::uint64_t, std::unique_ptr<Request>> by_number;
    };

    Request& start(cache::RemoteRead& read);
    // Ends a request, if it still waits.
    std::function<void(protocol::BlockStatus, std::string)> ending(const Request& request);
    std::string damaged(std::string record) const;

    SimulatedDevice& device_;
    Surroundings around_;
    int own_;
    int peer_;
    std::string dataset_;
    std::string fingerprint_;
    bool checksums_;
    std::uint64_t last_number_ = 0;
    std::shared_ptr<Requests> requests_ = std::make_shared<Requests>();
};

}  // namespace larder::campaign
