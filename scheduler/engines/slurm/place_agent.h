#pragma once

// The agent that lets Larder decide what Slurm runs (docs/slurm.md#larder-decides). It mirrors Slurm's held jobs as
// jobs of Larder, takes Larder's actions from /v1/engine, and looks at Slurm once a second, however many jobs there
// are. What it does follows from placed_jobs.h; this is the machinery: Slurm's commands and the allocator's API. It
// keeps nothing on disk: after a restart it goes on from the marks of Slurm's jobs. run() blocks; a thread of its own
// waits for actions.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/server/http_client.h"
#include "scheduler/engines/slurm/placed_jobs.h"
#include "scheduler/engines/slurm/slurm_state.h"

namespace larder::scheduler::slurm {

struct ProgramEnd {
    int status = 0;
    std::string output;
    std::string errors;
};

struct PlaceOptions {
    std::string endpoint;  // of the allocator
    HttpCredentials credentials;
    std::vector<std::string> partitions;                          // of Larder
    std::map<std::string, std::string, std::less<>> hierarchies;  // of cells, by partition; jobs stay within them
    std::int64_t look_ns = 1'000'000'000;                         // from one look at Slurm to the next
    // Runs a program to its end. The error means that it could not be run.
    std::function<Result<ProgramEnd>(const std::vector<std::string>& arguments, const std::string& input)> run_program;
    std::function<void(const std::string& text)> log;
};

// Returns a job of the allocator's POST /v1/queue for a Slurm job, as JSON. invalid_argument: Larder cannot place such
// a job; the text is for its user. `gpus_of_a_node` is the number of the largest node, `hierarchy` that of the job's
// partition; empty: none.
Result<std::string> submission_of(const JobRow& row, std::uint32_t gpus_of_a_node, std::string_view hierarchy = "");

class PlaceAgent {
public:
    explicit PlaceAgent(PlaceOptions options);
    // Returns only if the allocator refuses the agent for good.
    Error run();

private:
    struct Answer;

    Result<HttpResponse> ask(HttpClient& client, std::string_view method, const std::string& target,
                             const std::string& body = "", std::int64_t wait_s = 0) const;
    void wait_for_actions();
    Result<void> look();
    Result<void> attach();
    Result<void> refresh();
    Result<void> read_events();
    void take_actions();
    void carry_out();
    void place_jobs(const std::vector<SlurmCommands::Place>& placements, std::vector<std::string>& releases);
    void run_batch(const std::vector<std::vector<std::string>>& lines);
    void ask_for_devices(const std::vector<std::string>& keys);
    void signal_jobs(const std::vector<std::string>& keys, const std::vector<std::string>& options);
    Result<void> cancel_in_larder();
    Result<void> submit();
    Result<std::string> submission(const JobRow& row) const;
    Result<bool> is_in_queue(const std::string& key);
    Result<bool> submit_all(const std::vector<const JobRow*>& rows, const std::vector<std::string>& bodies);
    Result<void> report();
    Result<bool> send_report();
    void say(const std::string& text);

    PlaceOptions options_;
    const bool has_several_;  // allocators, that stand in for each other
    HttpClient client_;
    PlacedJobs jobs_;
    JobRows rows_;
    std::uint32_t gpus_of_a_node_ = 0;
    std::set<std::string, std::less<>> with_some_nodes_;  // partitions that lack some of Larder's nodes
    std::vector<EngineEvent> report_;                     // that the allocator has not acknowledged
    std::uint64_t reports_ = 0;
    std::uint64_t last_event_ = 0;  // of the allocator's event log
    bool knows_queue_ = false;
    std::string said_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::string session_;               // empty: none
    std::vector<std::string> actions_;  // answers of the session, not taken yet
};

}  // namespace larder::scheduler::slurm
