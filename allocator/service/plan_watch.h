#pragma once

// Compares each plan with the one before and adds events: nodes and jobs that came or went, and changes of the plan,
// with the reason. One thread at a time.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "allocator/cluster.h"
#include "allocator/service/events.h"

namespace larder::allocator {

class PlanWatch {
public:
    explicit PlanWatch(EventLog& events) : events_(events) {}

    // Notes an operator's action as the reason for the next change of the plan: "quota of images pinned".
    void add_reason(std::string reason);
    // Compares the plan with the last one. Call it after each replan.
    void compare_with_last(const Cluster& cluster, std::int64_t now_ns);

private:
    void compare_names(std::set<std::string>& known, std::set<std::string> now, EventKind appeared, EventKind gone,
                       const std::string& what);

    EventLog& events_;
    std::uint64_t plan_ = 0;
    std::vector<std::string> reasons_;  // the first few
    std::size_t more_reasons_ = 0;
    std::set<std::string> nodes_;
    std::set<std::string> jobs_;
    std::map<std::string, std::uint64_t> quotas_;
};

}  // namespace larder::allocator
