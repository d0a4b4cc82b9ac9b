#pragma once

// Warms the datasets that the allocator lists (NodePlan::warm), one task for each, and stops when they are no longer
// listed. Says which are warmed to their present quota. Control thread only.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/control/datasets.h"
#include "cache/control/scans.h"
#include "cache/control/tasks.h"
#include "cache/store/store.h"

namespace larder::cache {

class Warming {
public:
    // The arguments must outlive the Warming.
    Warming(Datasets& datasets, Scans& scans, Tasks& tasks) : datasets_(datasets), scans_(scans), tasks_(tasks) {}

    // Call it with every plan, once the plan's quotas are applied. A dataset that is busy with another task is tried
    // again with the next plan.
    void follow(std::span<const std::string> listed);
    std::vector<std::string> warmed() const;

private:
    struct Warm {
        std::uint64_t task = 0;
        Quota quota;         // when the task was started
        bool ended = false;  // done or failed
    };

    std::optional<Quota> quota_of(const std::string& dataset) const;

    Datasets& datasets_;
    Scans& scans_;
    Tasks& tasks_;
    std::map<std::string, Warm> started_;  // by dataset
};

}  // namespace larder::cache
