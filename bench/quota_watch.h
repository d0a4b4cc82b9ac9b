#pragma once

// For how long have a plan's quotas stood? Since a look at which all were in force on their nodes, if at every one
// after it they still were, and none was planned otherwise than at that first one: a quota that changes and changes
// back, or a little at every look, has not stood. Pure; one thread.

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
    // All that are planned or in force, each by a name of its own; of one that is not among them, both are 0.
    void look(const std::map<std::string, TierQuota>& quotas, std::int64_t now_ns);

    // As of the last look.
    std::int64_t stood_ns() const { return stood_ns_; }

private:
    std::map<std::string, TierQuota> first_;
    std::int64_t first_ns_ = 0;
    bool in_force_ = false;  // at the last look
    std::int64_t stood_ns_ = 0;
};

}  // namespace larder::bench
