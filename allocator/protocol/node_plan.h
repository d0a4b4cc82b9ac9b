#pragma once

// The allocator's answer to a report: the node's part of the plan, and the lease of its jobs' rates. The JSON is these
// structs, member by member, except that a lease's end is sent as the time left (codec.h).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace larder::allocator {

struct LeasedRate {
    std::string job;
    double bytes_per_second = 0;

    bool operator==(const LeasedRate&) const = default;
};

struct Lease {
    std::uint64_t number = 0;  // rises with every lease of the ledger
    std::int64_t expires_ns = 0;
    double floor_bytes_per_second = 0;  // per job, after expiry; without jobs: for all jobs that start meanwhile
    std::vector<LeasedRate> rates;
    // True if less than the wanted rates could be leased: ask again soon.
    bool cut = false;
    double wanted_bytes_per_second = 0;  // the total, floors included; set when the lease is made, not saved

    double sum() const;
    // The most its node may take while the lease holds, and after it has expired.
    double in_force() const;
    double expired() const;
};

struct DatasetQuota {
    std::string name;
    std::uint64_t memory_bytes = 0;
    std::uint64_t disk_bytes = 0;

    bool operator==(const DatasetQuota&) const = default;
};

// Another node whose cache may be read.
struct PeerNode {
    std::string node;  // empty: its name is not known, as in versions 1 and 2 of the protocol
    std::string endpoint;

    bool operator==(const PeerNode&) const = default;
};

// A node's part of the plan. Quotas hold until the next plan; rates as long as the lease.
struct NodePlan {
    std::uint64_t plan = 0;  // rises with every plan that differs from its predecessor
    std::vector<DatasetQuota> quotas;
    // The other nodes of its group. nullopt: the list that the report named by its etag.
    std::optional<std::vector<PeerNode>> peers;
    std::uint64_t peers_etag = 0;  // names the list for this node: if the list changes, so does the etag
    Lease lease;
    // Datasets to warm now, for jobs that start soon. The node stops warming a dataset once it is no longer listed.
    std::vector<std::string> warm;
};

}  // namespace larder::allocator
