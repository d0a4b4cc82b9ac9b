#pragma once

// Tells how long a plan's quotas have been stable: since the first look from which all were in force on their nodes at
// every look and none was planned differently from that first look. A quota that changes and changes back, or a little
// at every look, is not stable. Pure; one thread.

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
    void look(const std::map<std::string, TierQuota>& quotas, std::int64_t now_ns);

    // The stable time at the last look.
    std::int64_t stood_ns() const { return stood_ns_; }

private:
    std::map<std::string, TierQuota> first_;
    std::int64_t first_ns_ = 0;
    bool in_force_ = false;  // at the last look
    std::int64_t stood_ns_ = 0;
};

}  // namespace larder::bench
