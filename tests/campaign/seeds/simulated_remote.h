#pragma once

// The remote as one node sees it. It may be slow, fail, deliver after a failed try whose bytes are paid for too, and
// deliver wrong bytes where the manifest has checksums.

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "cache/remote.h"
#include "tests/campaign/seeds/bandwidth.h"
#include "tests/campaign/seeds/dataset.h"
#include "tests/campaign/seeds/simulated_device.h"

namespace larder::campaign {

struct RemoteFaults {
    std::int64_t delay_min_ns = 2 * kMillisecond_ns;
    std::int64_t delay_max_ns = 20 * kMillisecond_ns;
    double slow = 0;  // the chance that a read takes up to three seconds
    double error = 0;
    double retried = 0;      // the chance that a part is read twice
    double wrong_bytes = 0;  // only where the manifest has checksums, and never twice in a row
};

class SimulatedRemote final : public cache::Remote {
public:
    SimulatedRemote(SimulatedDevice& device, SimulatedDataset& dataset, const RemoteFaults& faults, int node,
                    Bandwidth& bandwidth, const Clock& clock, WorldRandom& random)
        : device_(device),
          dataset_(dataset),
          faults_(faults),
          node_(node),
          bandwidth_(bandwidth),
          clock_(clock),
          random_(random) {}

    void read(cache::RemoteRead& read) override;

private:
    struct Pending : cache::Operation {
        SimulatedRemote* remote = nullptr;
        cache::RemoteRead* read = nullptr;
        bool fails = false;
    };

    protocol::BlockStatus serve(const Pending& ended);

    SimulatedDevice& device_;
    SimulatedDataset& dataset_;
    const RemoteFaults& faults_;
    int node_;
    Bandwidth& bandwidth_;
    const Clock& clock_;
    WorldRandom& random_;
    std::set<std::string, std::less<>> wrong_last_;  // objects whose last read had wrong bytes
    std::deque<Pending> pool_;
    std::vector<Pending*> free_;
};

}  // namespace larder::campaign
