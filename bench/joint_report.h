#pragma once

// The joint bench's results for each policy, as JSON and as tables.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "bench/joint_scenario.h"

namespace larder::bench {

// A job's rates as the plans predict them, in bytes/s, averaged over the time measured.
struct Predicted {
    double rate = 0;
    double equal_share = 0;
    double ideal = 0;
};

struct JobResult {
    double measured = 0;  // bytes/s
    Predicted predicted;
};

struct PolicyResult {
    std::vector<JobResult> jobs;
    std::uint64_t remote_bytes = 0;     // since the start
    std::uint64_t delivered_bytes = 0;  // since the start
    double remote_per_byte = 0;         // in the steady state
    double excess_bytes = 0;            // the most by which the remote's bytes ever exceeded B * time
    std::string network;                // the kind of the nodes' networks; empty: no nodes
};

// `shares`: results of the policy equal-shares, or else of the first policy. Rates are measured against its equal
// shares.
boost::json::object to_json(const JointScenario& scenario, const std::string& policy, const PolicyResult& result,
                            const std::vector<JobResult>& shares);

void print_policies(const JointScenario& scenario, const boost::json::array& policies);

}  // namespace larder::bench
