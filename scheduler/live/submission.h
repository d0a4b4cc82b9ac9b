#pragma once

// A submission is a user's request to run a job. It has names where decisions use indices. check_submission() validates
// it before the job is queued.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
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
    std::optional<std::uint32_t> reader_uid;  // reads the dataset; nullopt: as `user`. Only agents and operators say it
    std::string submitter;                    // over TCP: the name of the token or certificate
    std::string tenant;                       // empty: tenant_of() decides
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
    // The training goes on when tasks, one process a node, come and go: an engine may resize a running attempt.
    bool elastic = false;
    // As in JobSpec.
    double weight = 1;
    double restart_s = 0;
    double packed_rate = 0;
    double gpu_memory_part = 0;
    std::vector<double> scaling;
    std::vector<double> rate_by_nodes;
    GangShape shape;
    // Settings for the cluster manager: image, account, partition. Only its agent reads them.
    std::map<std::string, std::string> engine_parameters;

    std::uint32_t least_gpus() const { return gpus_min == 0 ? gpus : gpus_min; }
    // The fewest GPUs that its gang may have.
    std::uint32_t most_gpus() const { return gpus_max == 0 ? gpus : gpus_max; }
};

// The client that submits.
struct Submitter {
    std::optional<std::uint32_t> uid;  // on the Unix socket
    std::string name;                  // over TCP: of the token or certificate
    bool is_operator = false;
    bool is_agent = false;  // of the cluster manager that runs the jobs, with rules of its own for its users

    // For every tenant, at every priority and weight.
    bool may_submit_for_all() const { return is_operator || is_agent; }
};

// Says who may submit for one tenant, and at which priority.
struct SubmitRule {
    bool is_open = true;  // to every submitter
    std::set<std::uint32_t> uids;
    std::set<std::string> names;
    std::optional<std::int32_t> priority_max;
    // The highest weight of a job, for the tenants below this one, too. 1 if neither the tenant nor one above has it.
    std::optional<double> weight_max = {};

    bool allows(const Submitter& by) const {
        return is_open || by.may_submit_for_all() || (by.uid ? uids.contains(*by.uid) : names.contains(by.name));
    }
};

// The bounds that submissions are checked against. The cluster's unusable nodes count, too.
struct SubmissionLimits {
    const GpuCluster& cluster;
    std::span<const Tenant> tenants;
    std::span<const DatasetState> datasets;
    double now_s = 0;
    const Placer* placer = nullptr;  // knows the tenants' claims; null: every tenant has a claim to all GPUs
    Submitter by{.uid = {}, .name = {}, .is_operator = true};
    std::span<const SubmitRule> rules = {};  // by tenant; empty: all tenants are open
    bool engine_takes_parameters = false;
};

// Returns the tenant that the job counts for. If the job names none, that is "default" if the submitter may submit for
// it, else the only tenant for which the submitter may. Errors: not_found if the tenant is unknown; permission_denied;
// invalid_argument if there are several to choose from.
Result<std::string> tenant_of(const Submission& job, const SubmissionLimits& limits);

// The most bytes that one submission may take on record.
inline constexpr std::uint64_t kRecordBytesMax = 256u << 10;
// Returns the bytes of the job's record, at most. Its log and its counters, which come later, count a fixed amount.
std::uint64_t record_bytes(const Submission& job);

// Fails with invalid_argument, not_found (tenant, dataset, GPU type), permission_denied (tenant, priority, weight) or
// no_space (the job is larger than the cluster, than its tenant's claim, or than a quota).
Result<void> check_submission(const Submission& job, const SubmissionLimits& limits);

}  // namespace larder::scheduler
