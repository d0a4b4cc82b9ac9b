#pragma once

// The declaration made when a job is registered: values that cannot be measured, or are not measured yet. A job can
// read without registration.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "allocator/protocol/unlimited.h"

namespace larder::allocator {

// The most nodes in JobRegistration::expected_on.
inline constexpr std::size_t kExpectedNodesMax = 1024;

// The client who registered a job without the role of an operator.
struct RegistrationOwner {
    std::optional<std::uint32_t> uid;  // on the Unix socket
    std::string token;                 // over TCP: the name of the token or certificate

    auto operator<=>(const RegistrationOwner&) const = default;
};

struct JobRegistration {
    std::string name;
    double weight = 1;
    double epochs = kUnlimited;                    // still to go at registration, the current one included
    std::optional<double> ideal_bytes_per_second;  // f*, used until it is measured
    double bandwidth_floor_bytes_per_second = 0;
    double bandwidth_cap_bytes_per_second = kUnlimited;
    // The uid that the job's loaders have on every node. Sessions of other users under this name are other jobs. Empty:
    // any user.
    std::optional<std::uint32_t> user;
    // The dataset that the job will read. Empty: not known before it reads.
    std::string dataset;
    // The least quota of the dataset over all nodes while the job is registered. Nodes warm the dataset up to this size
    // until the job runs.
    std::uint64_t cache_bytes = 0;
    // Set by the allocator, never sent: the GPUs by node on which another scheduler, such as Slurm, runs the job. The
    // job counts there before its first read.
    std::map<std::string, std::uint32_t> runs_on;
    // Set by the allocator, never sent: the nodes where another scheduler expects to start the job, sorted. Until the
    // job runs, its reserved cache goes there first. Unknown nodes have no effect.
    std::vector<std::string> expected_on;
    // Set by the allocator, never sent. The owner and operators may remove the registration. Empty: operators only.
    std::optional<RegistrationOwner> owner;
    // Set by the allocator, never sent: the scheduler made the registration, for a job of its queue.
    bool by_scheduler = false;

    // True if an operator or the scheduler made the registration.
    bool registered_by_operator() const { return !owner; }
};

}  // namespace larder::allocator
