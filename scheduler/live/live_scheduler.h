#pragma once

// The scheduler of the daemon: it does for submitted jobs what the simulator does for a trace. It asks the same policy,
// through the same decide(), over a snapshot of the queue and of the allocator's view. It tells the engine what to
// start and stop, and registers running jobs with the allocator, so that cache and bandwidth are planned for them.
// Every action is put on record before it is carried out: a start is written as an intent, then told to the engine,
// which starts each attempt at most once. So a daemon that was killed at any point resumes where it was. One thread; it
// is ticked a few times a second.

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "allocator/cluster.h"
#include "base/error.h"
#include "scheduler/live/engine.h"
#include "scheduler/live/live_snapshot.h"
#include "scheduler/live/node_drain.h"
#include "scheduler/live/queue.h"
#include "scheduler/live/why.h"
#include "scheduler/policy.h"

namespace larder::scheduler {

// A node as its cluster manager has described it.
struct KnownNode : NodeInventory {
    bool usable = true;  // false: it was lost or drained when it was last told of
};

// The state that must survive the process. A change has only the new values.
struct LiveRecord {
    std::map<JobId, std::optional<JobRecord>> jobs;  // nullopt: dropped from the history
    std::map<std::string, GpuTime> tenants;
    std::map<std::string, std::optional<KnownNode>> nodes;   // of an open cluster; nullopt: removed
    std::vector<std::string> gpu_types;                      // the cluster's; empty: they have not changed
    std::map<std::string, std::optional<NodeDrain>> drains;  // by operators; nullopt: taken back
    JobId last_number = 0;  // set when read from the store: the highest number given so far
};

struct LiveOptions {
    GpuCluster cluster;
    std::string gpu_type = "gpu";          // of nodes whose cluster manager does not name one
    std::vector<Tenant> tenants;           // at least one
    std::vector<SubmitRule> submit_rules;  // by tenant; empty: all tenants are open
    std::unique_ptr<Policy> policy;
    std::unique_ptr<Placer> placer;
    bool storage_aware = true;
    std::size_t history_max = 10'000;
    std::uint64_t queue_bytes_max = JobQueue::kBytesMax;
    double decide_every_s = 10;                      // even if nothing happens, because rates change
    TimeWindow window;                               // for GPU time, from the policy's options
    double start_timeout_s = 0;                      // for an attempt to begin; 0: none
    bool engine_takes_parameters = false;            // Submission::engine_parameters
    std::optional<std::uint32_t> own_user;           // runs the jobs that have no user of their own; nullopt: unknown
    std::map<std::string, std::string> environment;  // of all jobs; a job's own variables take precedence
};

// One moment on two clocks.
struct Moment {
    double unix_s = 0;
    std::int64_t steady_ns = 0;  // on the cluster's clock
};

class LiveScheduler {
public:
    using Done = std::function<void(Result<void> done)>;
    // Puts all of a change on record, or fails and writes none of it. Then calls `saved` on the scheduler's thread, at
    // once or later, in the order of changes.
    using Save = std::function<void(LiveRecord change, Done saved)>;
    using Submitted = std::function<void(Result<std::vector<JobId>> ids)>;

    // `engine` and `cluster` must outlive this object.
    LiveScheduler(LiveOptions options, Engine& engine, allocator::Cluster& cluster, Save save);

    // Resumes from what is on record. Call it before anything else.
    void restore(const LiveRecord& found, Moment now);

    // Calls `done` at once with an error, or else once the jobs are on record or could not be put there.
    void submit(std::span<const Submission> jobs, const Submitter& by, Moment now, Submitted done);
    void cancel(JobId job, const std::string& by, Moment now, Done done);
    // drain() keeps further jobs off a node, and lets those that run there go on. undrain() takes the node back. Both
    // call `done` as cancel() does. not_found: there is no such node, or it is not drained. unsupported: its cluster
    // manager drains it; the error has the command. unavailable: whether it does is not known yet.
    void drain(const std::string& node, const std::string& by, Moment now, const Done& done);
    void undrain(const std::string& node, const std::string& by, const Done& done);
    void tick(Moment now);
    // True if all changes are on record, except the progress of running jobs, which is saved now and then.
    bool all_saved() const {
        return !saving_ && queue_.unsaved().empty() && unsaved_nodes_.empty() && unsaved_drains_.empty();
    }
    // Calls `done` once all changes so far are on record or could not be put there.
    void when_saved(Done done);

    const JobQueue& queue() const { return queue_; }
    std::vector<QueueNote> take_notes() { return queue_.take_notes(); }
    const LiveOptions& options() const { return options_; }
    // The nodes as the cluster manager describes them; empty: the nodes are configured.
    const std::map<std::string, KnownNode>& inventory() const { return inventory_; }
    const NodeDrains& drains() const { return drains_; }
    Why why(const JobRecord& job, Moment now) const;
    std::string output_of(const JobRecord& job) const { return engine_.output_of(job.id, job.attempt); }

    static constexpr std::array kWaitSeconds{1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0};
    struct Counts {
        std::uint64_t decisions = 0;
        std::uint64_t decisions_failed = 0;
        std::uint64_t saves_failed = 0;
        std::array<std::uint64_t, kWaitSeconds.size() + 1> waits{};
        double waits_s = 0;
    };
    const Counts& counts() const { return counts_; }

private:
    void take_events(Moment now);
    // If the engine's list was made anew, stops the listed attempts that the queue does not have.
    void stop_orphans();
    void take_node_event(const EngineEvent& event, Moment now);
    bool set_usable(std::uint32_t n, bool usable);
    // Makes a node usable if neither an operator nor the engine keeps jobs off it. Returns false if nothing has
    // changed.
    bool update_usable(const std::string& node);
    Result<void> check_node(const std::string& node) const;
    void take_inventory(const std::string& node, const NodeInventory& inventory, Moment now);
    void remove_node(const std::string& node, Moment now);
    void set_node(const std::string& name, const NodeInventory& inventory);
    std::uint32_t type_named(const std::string& name);
    void restore_nodes_of(const Allotment& held);
    std::uint32_t slot_for_node();
    void account(double now_s);
    void set_gpu_time_of_tenants();
    void decide_now(Moment now);
    void update_turns(double now_s);
    void count_waits();
    // Marks some of the running jobs as changed, so that their progress is put on record.
    void mark_progress();
    void save();
    std::set<std::string> add_unsaved_nodes(LiveRecord& change);
    void save_nodes(LiveRecord change, std::set<std::string> nodes);
    void note_failed_save(const std::set<std::string>& nodes, const Error& error);
    std::set<std::string> add_unsaved_drains(LiveRecord& change);
    static void answer_waiting(const std::vector<Done>& waiting, const Result<void>& result);
    // `dropped`: the jobs that were removed from the history.
    void finish_save(std::span<const JobId> dropped, const std::set<std::string>& nodes, bool with_progress,
                     std::uint64_t events, const Result<void>& result);
    // `events`: as in Engine::recorded().
    void tell_engine(std::uint64_t events);
    void register_job(JobRecord& job);
    // Handles that the job runs with another number of GPUs: the rate that it declared is another one.
    void declare_rate_again(const JobRecord& job);
    void remove_jobs_that_ended();
    void remove_lost_registrations();
    EngineJob engine_job(const JobRecord& job) const;

    LiveOptions options_;
    Engine& engine_;
    allocator::Cluster& cluster_;
    Save save_;
    JobQueue queue_;
    std::map<std::string, KnownNode> inventory_;
    std::set<std::string> unsaved_nodes_;
    NodeDrains drains_;
    std::set<std::string> unsaved_drains_;
    std::set<std::string> closed_by_engine_;  // nodes that it has told lost, drained or removed
    std::set<std::string> removed_nodes_;     // known to the queue still, as jobs had GPUs there
    bool removed_are_swept_ = false;
    std::vector<std::uint32_t> free_slots_;  // of nodes that were removed
    bool places_changed_ = false;            // nodes have other GPUs since the queue was told
    double connected_since_s_ = 0;           // when the engine was last seen without a connection
    std::uint64_t events_taken_ = 0;         // from the engine
    std::uint64_t lists_seen_ = 0;           // of Engine::lists()
    bool saving_ = false;                    // a change is being put on record; the next waits for it
    std::vector<Done> wait_for_save_;        // waiting for the next change to be put on record
    // Jobs that are no longer with the engine, and whose registrations are to be removed, if they have any.
    std::set<JobId> to_unregister_;
    std::map<std::string, GpuTime> gpu_time_by_tenant_;
    Counts counts_;
    bool decision_due_ = true;
    double decided_s_ = 0;
    double next_decision_s_ = 0;
    double accounted_s_ = 0;
    double progress_saved_s_ = 0;
    JobId progress_saved_of_ = 0;  // the last job whose progress was saved
    bool progress_unsaved_ = false;
};

}  // namespace larder::scheduler
