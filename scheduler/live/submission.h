#pragma once

// What a user asks for when submitting a job. It has names where decisions use indices. check_submission() validates it
// before it is queued.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "scheduler/gpu_cluster.h"
#include "scheduler/job_spec.h"
#include "scheduler/placement/placer.h"
#include "scheduler/snapshot.h"

namespace larder::scheduler {

// The user that the command runs as, if the daemon may choose.
struct RunAs {
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;

    bool operator==(const RunAs&) const = default;
};

struct Submission {
    std::string name;  // the job name of its loaders, unique among unfinished jobs. Empty: "job-ID"
    std::vector<std::string> command;
    std::string directory;  // working directory
    std::map<std::string, std::string> environment;
    std::optional<RunAs> user;
    std::string tenant;  // empty: tenant_of() decides
    std::uint32_t gpus = 1;
    std::uint32_t gpus_min = 0;  // 0: as many as `gpus`
    std::uint32_t gpus_max = 0;
    std::string gpu_type;                         // empty: any
    std::string dataset;                          // empty: none
    std::optional<double> epochs;                 // nullopt: the end is unknown
    std::map<std::string, double> ideal_by_type;  // f* with `gpus` GPUs, bytes per second; type "": all others
    std::int32_t priority = 0;
    std::optional<double> deadline_s;  // seconds since 1970
    ServiceClass service = ServiceClass::best_effort;
    std::vector<std::string> after;  // names or numbers of jobs that must succeed first
    double grace_s = 30;             // from SIGTERM to SIGKILL
    bool preemptible = true;
    bool opportunistic = false;  // JobSpec::opportunistic
    // As in JobSpec.
    double weight = 1;
    double restart_s = 0;
    double packed_rate = 0;
    std::vector<double> scaling;
    std::vector<double> rate_by_nodes;

    std::uint32_t least_gpus() const { return gpus_min == 0 ? gpus : gpus_min; }
    std::uint32_t most_gpus() const { return gpus_max == 0 ? gpus : gpus_max; }
};

// What submissions are checked against. The cluster's unusable nodes count, too.
struct SubmissionLimits {
    const GpuCluster& cluster;
    std::span<const Tenant> tenants;
    std::span<const DatasetState> datasets;
    double now_s = 0;
    const Placer* placer = nullptr;  // knows the tenants' claims; null: every tenant has a claim to all GPUs
};

// Returns the tenant that the job counts for. If the job names none, that is "default" if there is such a tenant, else
// the only tenant. not_found: the tenant is unknown, or there are several to choose from.
Result<std::string> tenant_of(const Submission& job, std::span<const Tenant> tenants);

// Fails with invalid_argument, not_found (tenant, dataset, GPU type) or no_space (the job is larger than the cluster,
// than its tenant's claim, or than a quota).
Result<void> check_submission(const Submission& job, const SubmissionLimits& limits);

}  // namespace larder::scheduler
