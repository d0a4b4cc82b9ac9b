#pragma once

// The cluster as an operator sees it: for each node, dataset and job the reported, the planned and the measured values,
// side by side. The API's lists and the metrics are both written from it. A view is a copy; making one changes nothing.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "allocator/cluster.h"
#include "allocator/service/job_history.h"
#include "allocator/service/observed.h"

namespace larder::allocator {

// Bytes of a dataset on a node, by tier.
struct TierBytes {
    std::uint64_t memory_bytes = 0;
    std::uint64_t disk_bytes = 0;

    std::uint64_t bytes() const { return memory_bytes + disk_bytes; }
};

struct NodeView {
    std::string name;
    bool alive = false;  // reported within the length of a lease
    std::int64_t heard_ago_ns = 0;
    std::uint32_t gpus = 0;
    TierBytes capacity;
    TierBytes quota;  // planned
    TierBytes used;   // reported
    double disk_read_bytes_per_second = kUnlimited;
    double nic_bytes_per_second = kUnlimited;
    std::string peer_group;  // of nodes that read each other's caches; empty: none reads this node's
    std::vector<std::string> jobs;
    std::uint64_t lease_applied = 0;  // number of the lease that it reports as in force
    std::optional<LeaseView> lease;   // the last one that was granted
    std::int64_t lease_age_ns = 0;
};

struct DatasetShare {
    std::string node;
    TierBytes quota;
    TierBytes cached;
};

struct DatasetView {
    std::string name;
    std::uint64_t size_bytes = 0;
    std::uint64_t quota_bytes = 0;    // planned
    std::uint64_t applied_bytes = 0;  // the quotas in force on nodes, as they report
    std::uint64_t cached_bytes = 0;
    // The bytes of the dataset that its jobs can still hit in their epochs: the mean over the jobs, or all cached bytes
    // if no job runs.
    std::uint64_t effective_bytes = 0;
    std::optional<std::uint64_t> pinned_bytes;
    double granted_bytes_per_second = 0;  // of the remote, to all its jobs
    std::vector<std::string> jobs;
    std::vector<DatasetShare> nodes;
};

struct JobView {
    std::string name;
    std::optional<std::uint32_t> user;  // whom the name belongs to; nullopt: unknown
    bool registered = false;
    bool running = false;  // a node reports it, or another scheduler runs it
    std::string dataset;
    std::vector<std::string> nodes;
    std::uint32_t ranks = 0;
    double weight = 1;
    double remaining_epochs = kUnlimited;
    double bandwidth_floor_bytes_per_second = 0;  // of a registered job: what is reserved for it
    double bandwidth_cap_bytes_per_second = kUnlimited;
    // f*: as declared, as measured, and as used in the plan.
    std::optional<double> declared_ideal_bytes_per_second;
    std::optional<double> measured_ideal_bytes_per_second;
    double ideal_bytes_per_second = 0;
    std::uint64_t cache_bytes = 0;  // reserved for the job
    bool staged = false;            // the reserved cache is filled as far as it can be
    std::uint64_t unread_bytes = 0;
    std::uint64_t unread_cached_bytes = 0;
    JobPlan plan;
    std::optional<JobRate> measured;
    std::optional<JobLimit> limit;  // of a running job

    // Returns the fraction by which the job reads faster than predicted (negative: slower); nullopt if either value is
    // missing.
    std::optional<double> prediction_error() const;
};

struct ClusterView {
    std::uint64_t plan = 0;
    std::vector<NodeView> nodes;  // by name, also those that no longer report
    std::vector<DatasetView> datasets;
    std::vector<JobView> jobs;  // by name, also those that are registered and do not run
};

ClusterView view_of(const Cluster& cluster, const Observed& observed, const JobHistory& history, std::int64_t now_ns);

}  // namespace larder::allocator
