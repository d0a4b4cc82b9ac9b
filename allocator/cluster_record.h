#pragma once

// The records that a Cluster must not lose: the operator's settings, the plan in force, and the leases of each node.
// One struct serves as the whole record, read at start, and as a change to it: a change fills in only what changed, and
// an empty optional means removed. Saving records is the caller's business.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "allocator/lease_ledger.h"
#include "allocator/protocol/job_registration.h"
#include "allocator/protocol/node_report.h"

namespace larder::allocator {

// The remote's bandwidth as an operator set it, and the configured value at that time. If the configured value has
// changed since, it wins.
struct RemoteRecord {
    double bytes_per_second = 0;
    double configured_bytes_per_second = 0;
};

// The epochs a registered job was seen in, by number: the first one since it was registered, and the last.
struct EpochsSeen {
    std::uint32_t first = 0;
    std::uint32_t last = 0;

    bool operator==(const EpochsSeen&) const = default;
};

// The measured f* of a job, and the job's user; nullopt: unknown. Users may have jobs of the same name.
struct MeasuredIdeal {
    double bytes_per_second = 0;
    std::optional<std::uint32_t> user;

    bool operator==(const MeasuredIdeal&) const = default;
};

struct ClusterRecord {
    std::map<std::string, std::optional<JobRegistration>> jobs;
    std::map<std::string, std::optional<std::uint64_t>> pins;  // bytes, by dataset
    std::optional<RemoteRecord> remote;
    std::map<std::string, std::optional<NodeReport>> nodes;      // the last report of each
    std::map<std::string, std::optional<MeasuredIdeal>> ideals;  // by job
    std::map<std::string, std::optional<EpochsSeen>> epochs;     // by job
    std::optional<std::uint64_t> plan_number;
    std::map<std::string, std::optional<std::vector<DatasetQuota>>> quotas;  // by node of the plan in force
    std::map<std::string, std::optional<std::vector<Lease>>> leases;         // by node: all that may be in force there
    // The most that each node may take once all its leases have expired. A floor must survive a power cut before its
    // node is told of the lease; leases need not.
    std::map<std::string, std::optional<double>> floors;
    // The rates of each node, for an allocator that takes over without `leases`. They must survive a power cut before
    // the node is told of its lease.
    LeaseLedger::Records rates;
    // The node that may be told of its lease only once `floors` and `rates` are saved; empty: none has more than
    // before.
    std::string promised_to;
    // Set if `leases` has leases that stand for `rates`: when they expire.
    std::optional<std::int64_t> rates_until_ns;
    // Set if the numbers of leases must be above those of earlier allocators, whatever nodes report.
    std::optional<std::uint64_t> lease_numbers_above;
    // Set if `leases` lacks some earlier leases: nothing may be leased before this time.
    std::optional<std::int64_t> no_lease_before_ns;
};

}  // namespace larder::allocator
