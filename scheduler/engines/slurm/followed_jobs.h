#pragma once

// Follows jobs that Slurm places: registers them with the allocator, reserves and warms their cache before they start,
// notes where they run, and releases all when they end. The allocator knows such a job as "slurm-NUMBER". Each call is
// one step of Slurm's burst_buffer.lua, prolog or epilog, in a process of its own. One thread; calls block.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/server/http_client.h"
#include "scheduler/engines/slurm/job_request.h"

namespace larder::scheduler::slurm {

struct FollowOptions {
    std::string endpoint;  // of the allocator
    HttpCredentials credentials;
    std::int64_t timeout_ms = 30'000;  // of one request
};

// The name under which loaders connect, and the allocator knows the job.
std::string job_name(std::string_view job);

// Returns the number of GPUs in a list as Slurm writes it: "0,1" or "0-3,6". nullopt: it is no such list.
std::optional<std::uint64_t> count_gpus(std::string_view list);

// Returns the numbers of the jobs that have not ended. `squeue` is what `squeue --states=all --format "%A %T"` prints.
std::set<std::string> unended_jobs(std::string_view squeue);

// Returns the list of nodes, as Slurm writes it, where backfill expects to start the job; empty: nowhere yet. `squeue`
// is what `squeue --noheader --format "%A %Y"` prints. Slurm also prints the other tasks of the job's array.
std::string scheduled_nodes(std::string_view squeue, std::string_view job);

class FollowedJobs {
public:
    explicit FollowedJobs(FollowOptions options);

    // Checks that the cluster can give what the job asks. Errors: not_found, no_space, unavailable, timeout.
    Result<void> check(const JobRequest& request);
    // Registers the job for its user, without a reservation. Replaces what an earlier run of the job left.
    // unavailable: no node has the dataset now, or no allocator answers.
    Result<void> begin(const std::string& job, std::uint32_t user, const JobRequest& request);
    // One attempt at reserving what the job asks. no_space: other jobs hold it, ask again later. The cache goes first
    // to the nodes where the job is expected. Call it again to change these.
    Result<void> reserve(const std::string& job, const JobRequest& request,
                         const std::vector<std::string>& expected_on = {});
    // True once the reserved cache is filled. Error: not_found if the job is no longer registered.
    Result<bool> is_staged(const std::string& job);
    // Succeeds also if the job is not registered.
    Result<void> release(const std::string& job);
    // Returns the numbers of the jobs that are registered.
    Result<std::vector<std::string>> registered();
    // nullopt: the job has ended there. Succeeds also if the job is not registered.
    Result<void> place(const std::string& job, const std::string& node, std::optional<std::uint64_t> gpus);

    // The cluster's cache, as slurm_bb_pools returns it.
    Result<std::string> pools_json();

    struct Dataset {
        std::string name;
        std::uint64_t size_bytes = 0;
        std::uint64_t cached_bytes = 0;
        std::uint64_t quota_bytes = 0;
        double granted_bytes_per_second = 0;
        std::vector<std::string> jobs;
    };
    struct Job {
        std::string name;
        std::string state;  // "registered", "staging", "staged", "runs"
        std::string dataset;
        std::uint64_t cache_bytes = 0;
        std::vector<std::string> nodes;
        std::uint64_t gpus = 0;
        double granted_bytes_per_second = 0;
    };
    struct Status {
        double remote_bytes_per_second = 0;
        std::vector<Dataset> datasets;
        std::vector<Job> jobs;
    };
    Result<Status> status();

private:
    struct Answer;
    Result<Answer> ask(std::string_view method, const std::string& target, std::string_view body = {});

    FollowOptions options_;
    HttpClient client_;
};

}  // namespace larder::scheduler::slurm
