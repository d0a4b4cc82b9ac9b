#pragma once

// Tells how long a plan's quotas have been stable: since the first sample from which on all were in force on their
// nodes in every sample, and none was planned differently than in that first sample. A quota that changes and changes
// back, or a little with every sample, is not stable. Pure; one thread.

#include <cstdint>
#include <map>
#include <string>

namespace larder::bench {

struct TierQuota {
    std::uint64_t planned_bytes = 0;
    std::uint64_t in_force_bytes = 0;  // on the node
};

class QuotaWatch {
public:
    // Takes all quotas that are planned or in force, each by a unique name. A missing one counts as 0 for both.
    void add_sample(const std::map<std::string, TierQuota>& quotas, std::int64_t now_ns);

    // The stable time at the last sample.
    std::int64_t stable_ns() const { return stable_ns_; }

private:
    std::map<std::string, TierQuota> first_;
    std::int64_t first_ns_ = 0;
    bool in_force_ = false;  // at the last sample
    std::int64_t stable_ns_ = 0;
};

}  // namespace larder::bench
