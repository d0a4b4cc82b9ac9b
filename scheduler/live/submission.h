#pragma once

// What a user asks for when submitting a job, as it came: names where decisions use indices. check_submission() says
// what is wrong with one before anything counts.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "scheduler/gpu_cluster.h"
#include "scheduler/job.h"
#include "scheduler/placement/placer.h"
#include "scheduler/snapshot.h"

namespace larder::scheduler {

// As whom its command runs, where the daemon may choose.
struct RunAs {
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;

    bool operator==(const RunAs&) const = default;
};

struct Submission {
    std::string name;  // its loaders' job name; one at a time has it. Empty: "job-ID"
    std::vector<std::string> command;
    std::string directory;  // where it runs
    std::map<std::string, std::string> environment;
    std::optional<RunAs> user;
    std::string tenant;  // empty: tenant_of() decides
    std::uint32_t gpus = 1;
    std::uint32_t gpus_min = 0;  // 0: as many as `gpus`
    std::uint32_t gpus_max = 0;
    std::string gpu_type;                         // empty: any
    std::string dataset;                          // empty: none
    std::optional<double> epochs;                 // nothing: no end is known
    std::map<std::string, double> ideal_by_type;  // f* with `gpus` GPUs, bytes per second; type "": all others
    std::int32_t priority = 0;
    std::optional<double> deadline_s;  // since 1970
    Service service = Service::best_effort;
    std::vector<std::string> after;  // names or numbers of jobs that must have succeeded
    double grace_s = 30;             // from SIGTERM to SIGKILL
    bool preemptible = true;
    bool opportunistic = false;  // JobSpec::opportunistic
    // As JobSpec has them.
    double weight = 1;
    double restart_s = 0;
    double packed_rate = 0;
    std::vector<double> scaling;
    std::vector<double> rate_by_nodes;

    std::uint32_t least_gpus() const { return gpus_min == 0 ? gpus : gpus_min; }
    std::uint32_t most_gpus() const { return gpus_max == 0 ? gpus : gpus_max; }
};

// What submissions are checked against. The cluster's nodes count whether usable at present or not.
struct SubmissionLimits {
    const GpuCluster& cluster;
    std::span<const Tenant> tenants;
    std::span<const DatasetState> datasets;
    double now_s = 0;
    const Placer* placer = nullptr;  // says what tenants have a claim to; may be null: to all there is
};

// Whom the job counts for. Where it does not say: "default", where there is such a tenant, else the only one; not_found
// where there are several.
Result<std::string> tenant_of(const Submission& job, std::span<const Tenant> tenants);

// invalid_argument, not_found (tenant, dataset, GPU type) or no_space (larger than the cluster, than what its tenant
// has a claim to, or than a quota).
Result<void> check_submission(const Submission& job, const SubmissionLimits& limits);

}  // namespace larder::scheduler
