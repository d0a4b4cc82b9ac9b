#pragma once

// The submitted jobs and what becomes of each: a state machine without a clock, a process or a file. Users' requests,
// decisions and engine events go in. Changed records come out, to be put on record before anything is done about them.
// The queue keeps the placer's account in step with what jobs hold. One thread.
//
//   waiting -> placed -> starting -> running -> succeeded | failed
//      ^                    |           |
//      +---- stopping <-----+-----------+        cancelled: from any state, through stopping if it runs
//
// Other jobs may be placed on the GPUs of a stopping job, but start only when that job is gone. The same holds for GPUs
// that a running job gives up when it is resized (JobRecord::next). A resize that adds GPUs waits until the added GPUs
// are clear. No resize both adds and removes nodes, so no two wait for each other.

#include <boost/unordered/unordered_flat_map.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "scheduler/decide.h"
#include "scheduler/live/engine.h"
#include "scheduler/live/job_index.h"
#include "scheduler/live/job_record.h"
#include "scheduler/placement/placer.h"

namespace larder::scheduler {

struct QueueCounts {
    std::uint64_t submitted = 0;
    std::uint64_t starts = 0;  // attempts
    std::uint64_t preemptions = 0;
    std::uint64_t lost = 0;
    std::uint64_t evictions = 0;
    std::uint64_t rejections = 0;  // starts that timed out included
    std::uint64_t resizes = 0;     // that the engine has carried out
    std::map<Phase, std::uint64_t> ended;
    std::vector<double> waits_s;  // from submission to the first start; the reader empties it
};

// A message for people who watch the queue.
struct QueueNote {
    enum class Kind : std::uint8_t { submitted, started, stopped, ended };
    Kind kind = Kind::submitted;
    std::string job;
    std::string text;  // a sentence without its full stop
};

class JobQueue {
public:
    // The most that jobs which have not ended may take on record; those of one submitter may take a quarter. Ended jobs
    // may take as much as all others: then the oldest are dropped. Both fit the store (history_store.cc) several times,
    // so that no submitter can keep the queue from recording what becomes of its jobs.
    static constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 30;

    // The longest time that a job which the engine did not begin waits before it is placed again, and that a job whose
    // growth was refused waits before it may grow again.
    static constexpr double kRetryMost_s = 300;

    // `cluster` and `placer` must outlive this object. `history_max`: the number of ended jobs that are kept.
    JobQueue(const GpuCluster& cluster, Placer& placer, std::size_t history_max, std::uint64_t bytes_max = kBytesMax);
    JobQueue(const JobQueue&) = delete;  // indices point to records
    JobQueue& operator=(const JobQueue&) = delete;

    // Resumes the jobs of a former process: restore() takes each in the order of ids, then place_restored() places
    // again what they hold. Jobs whose GPUs no longer exist, or are no longer theirs, are stopped.
    void restore(JobRecord record);
    void place_restored(double now_s);

    // New jobs get only numbers above `last`.
    void skip_numbers_to(JobId last) { last_id_ = std::max(last_id_, last); }

    // Submits all jobs or none. `limits`: as in check_submission(); `taken` returns true if a name is in use elsewhere.
    // The caller puts the jobs on record, then acknowledges or withdraws them. Until then find() and decisions ignore
    // them.
    // no_space: the queue has no room for the jobs, or one submitter has too much of it.
    Result<std::vector<JobId>> submit(std::span<const Submission> jobs, const SubmissionLimits& limits,
                                      const std::function<bool(const std::string& name)>& taken);
    void acknowledge(std::span<const JobId> jobs, double now_s);
    // Removes jobs that could not be put on record. They are unsaved then: an error of a store may come true later
    // (RowStore::write), so their rows are removed.
    void withdraw(std::span<const JobId> jobs);
    // changed: the job has already ended.
    Result<void> cancel(JobId job, const std::string& by, double now_s);

    // Returns the jobs to decide on, by id: those that run, or wait only for GPUs. A rejected job waits some time
    // first.
    std::vector<JobRecord*> schedulable(double now_s);
    // Returns when the next rejected job may be placed again, or grow again; kNever: there is none.
    double next_retry_s(double now_s) const;
    // Applies a decision. `ids`: by index in its snapshot. `by`: the policy, for the log.
    void apply(const Actions& actions, std::span<const JobId> ids, std::string_view by, double now_s);
    // Handles that the cluster has a new node of this index, with a name that may be new, or no longer has the node of
    // this name.
    void add_node(std::uint32_t node) { nodes_by_name_[cluster_.nodes[node].name].push_back(node); }
    void forget_node(const std::string& name) { nodes_by_name_.erase(name); }
    // Handles that nodes have other GPUs: what is known of places for shapes no longer holds.
    void forget_places_for_shapes();
    // Returns the names of the nodes of which jobs that have not ended have GPUs, or will have them.
    std::set<std::string, std::less<>> nodes_in_use() const;
    void set_waits_for(JobId job, WaitsFor why, const std::string& text, double now_s);
    // Moves placed jobs whose GPUs are clear to `starting`, and begins the resizes whose new GPUs are clear.
    void begin_starts(double now_s);
    // Handles the engine's events, except those about nodes.
    void take(const EngineEvent& event, double now_s);
    // Handles that a node takes no more jobs. A job placed there that has not begun waits again; a job moving there
    // stops instead. `what`: what became of the node, for the log ("was lost").
    void close_node(std::string_view node, std::string_view what, double now_s);
    // Handles that a node has fewer GPUs, or GPUs of another type. Jobs that have not begun there give up their places,
    // the latest first, until the others fit.
    void shrink_node(std::string_view node, double now_s);
    // Stops the attempts that have GPUs of a node which has gone for good. Their jobs wait again.
    void stop_on_removed_node(std::string_view node, double now_s);
    // Stops the attempts that the engine has not begun within `timeout_s`, counted from `since_s` at the earliest.
    // Their jobs wait again. Growth that it has not carried out by then is taken back, and an attempt that it has not
    // shrunk by then starts again. A resize may take the job's grace longer.
    void time_out_starts(double timeout_s, double since_s, double now_s);
    // Clears the rates of the job's spec on GPU types that have no place for its GangShape.
    void limit_types(JobRecord& job) const;
    // Copies the cells that jobs hold into their records. Call it before the records are written.
    void note_cells();

    const std::map<JobId, JobRecord>& jobs() const { return jobs_; }
    const JobIndex& active() const { return active_; }
    // The active jobs that do not wait: each holds GPUs, or is with the engine.
    const JobIndex& holders() const { return holders_; }
    std::span<JobRecord* const> active_records() { return active_.records(); }
    std::span<JobRecord* const> holder_records() { return holders_.records(); }
    JobRecord& job(JobId id) {
        JobRecord* const found = active_.find(id);
        return found != nullptr ? *found : jobs_.at(id);
    }
    // Returns null if the job was dropped from the history.
    JobRecord* find_record(JobId id);
    void changed(JobId id) { changed_.insert(id); }
    // Returns the jobs that were with the engine and no longer are, since the last call. They may have been dropped.
    std::vector<JobId> take_left_engine() { return std::exchange(left_engine_, {}); }
    // Finds a job by number or name. Prefers the job that has not ended if several jobs have the name, else the latest.
    Result<JobId> find(std::string_view number_or_name) const;
    JobId last_id() const { return last_id_; }
    QueueCounts& counts() { return counts_; }
    const QueueCounts& counts() const { return counts_; }
    std::vector<QueueNote> take_notes() { return std::exchange(notes_, {}); }

    // The ids whose records must be written, or removed if they are no longer in jobs().
    const std::set<JobId>& unsaved() const { return changed_; }
    // saving(): the unsaved ids are being written, and are unsaved again only if they change or save_failed() is
    // called.
    void saving() { saving_ = std::exchange(changed_, {}); }
    void saved() { saving_.clear(); }
    void save_failed() { changed_.merge(saving_); }

    Placement placement_of(const Allotment& held) const;  // empty: one of its nodes no longer exists, or has changed
    // Puts the placement into an empty list.
    void add_placement_of(const Allotment& held, Placement& placement) const;
    std::uint32_t type_index(const std::string& gpu_type) const;
    // Returns the nodes of a machine, one for each of its GPU types; empty if it no longer exists.
    std::span<const std::uint32_t> nodes_named(std::string_view name) const;

private:
    Allotment allotment_of(const Start& start, std::span<const JobId> ids) const;
    std::vector<HeldCell> cells_of(const Allotment& held) const;
    // Returns the request by which the placer gives the job this allotment again. `cells` must outlive it.
    PlaceRequest request_for(const JobRecord& job, const Allotment& held, std::span<const HeldCell> cells,
                             bool runs_there) const;
    // True if the job has GPUs of the node where it has not begun: it is placed there, or moves or grows there.
    bool is_expected_on(const JobRecord& job, std::string_view node) const;
    std::vector<JobId> ids_expected_on(std::string_view node) const;
    // Takes from a job its place on a node where it has not begun.
    void give_up_place(JobRecord& job, const std::string& why, double now_s);
    std::uint32_t gpus_held_on(std::string_view node) const;
    void set_phase(JobRecord& job, Phase phase);
    static void set_opportunistic(JobRecord& job, bool opportunistic);
    void preempt(JobRecord& job, std::string_view reason, double now_s);
    void place(JobRecord& job, Allotment held, bool moved, double now_s);
    // Lets the running attempt go on with other GPUs, which the placer has for it already. Returns false, with nothing
    // changed, if it has to start again for that.
    bool resize(JobRecord& job, Allotment to, double now_s);
    // Takes back that the job grows. Stops it if it may not keep what it had before.
    void take_back_growth(JobRecord& job, double now_s);
    void supersede_resize(JobRecord& job);
    // Stops the guests of a job that have GPUs which it does not keep.
    void stop_guests_outside(JobId host, const Allotment& kept, double now_s);
    // Handles that the resize under way is refused or late. Growth is taken back, and not tried again for a while.
    void give_up_resize(JobRecord& job, const std::string& why, double now_s);
    void begin_resize(JobRecord& job, double now_s);
    void finish_resize(JobRecord& job, const EngineEvent& event, double now_s);
    // Stops the attempt, and starts it again with the GPUs that it was to have by a resize.
    void restart_instead(JobRecord& job, const std::string& why, double now_s);
    void stop(JobRecord& job, StopCause cause);
    void end(JobRecord& job, Phase outcome, const std::string& why, double now_s);
    void end_with_dependents(JobRecord& job, Phase outcome, const std::string& why, double now_s);
    void trim_history();
    Result<void> check_room(std::span<const Submission> jobs, const Submitter& by) const;
    // Counts a job that has not ended, or no longer counts it.
    void count_active(const Submission& job, bool is_added);
    void requeue(JobRecord& job, double now_s);
    void handle_end(JobRecord& job, const EngineEvent& event, double now_s);
    void handle_loss(JobRecord& job, const EngineEvent& event, double now_s);
    void handle_stop_from_outside(JobRecord& job, const EngineEvent& event, double now_s);
    void handle_rejection(JobRecord& job, const EngineEvent& event, double now_s);
    void handle_eviction(JobRecord& job, const EngineEvent& event, double now_s);
    // Handles that a stopping job is gone because it was told to stop.
    void finish_stop(JobRecord& job, double now_s);
    // Returns how long to wait after a refusal that follows `times` others.
    static double retry_delay_s(std::uint32_t times);
    // Lets the job wait again, but not be placed at once: longer with each time in a row.
    void requeue_later(JobRecord& job, double now_s);
    // Lets waiting jobs wait as long as one that was rejected, for the same reason.
    void hold_back(std::span<const std::string> names, const JobRecord& rejected);
    // Gives all jobs that had a lease the last one on record. Leases end at the same times, and each round renews them.
    void restore_leases();
    // Lets the tenant's jobs be placed again: one that has ended may have made room within the limit that refused them.
    void release_held_back(const std::string& tenant);
    void tell_dependents(const JobRecord& job, double now_s);
    void check_dependencies(JobId id, double now_s);
    // The GPUs that stopping jobs still hold, and those that jobs still have to give up, by node.
    using LeavingGpus = std::unordered_map<std::string_view, std::uint64_t>;
    LeavingGpus leaving_gpus() const;
    // The number of GPUs that jobs with the engine hold, by node.
    using UsedGpus = std::unordered_map<std::string_view, std::uint32_t>;
    UsedGpus used_gpus() const;
    // Releases the job's GPUs in the placer, if it has any there. Its guests take them over.
    void release(const JobRecord& job, double now_s);
    // Lets the guests of a job keep its GPUs alone. The job held them by `cells`.
    void hand_to_guests(JobId host, std::span<const HeldCell> cells, double now_s);

    const GpuCluster& cluster_;
    struct NameHash {
        using is_transparent = void;
        std::size_t operator()(std::string_view name) const { return std::hash<std::string_view>{}(name); }
    };
    boost::unordered_flat_map<std::string, std::vector<std::uint32_t>, NameHash, std::equal_to<>> nodes_by_name_;
    Placer& placer_;
    std::size_t history_max_;
    std::uint64_t bytes_max_;
    std::map<JobId, JobRecord> jobs_;
    JobIndex active_;  // jobs that have not ended
    JobIndex holders_;
    std::vector<JobId> left_engine_;
    // All active jobs that wait for others, that share another job's GPUs, or that are held back. May have a few more.
    std::set<JobId> dependents_;
    std::set<JobId> guests_;
    std::set<JobId> held_back_;
    std::set<std::pair<double, JobId>> history_;
    std::uint64_t active_bytes_ = 0;  // on record
    std::uint64_t history_bytes_ = 0;
    std::map<std::string, std::uint64_t> submitter_bytes_;  // of jobs that have not ended
    std::map<std::string, JobId, std::less<>> by_name_;     // the latest job of each name
    std::set<JobId> changed_;
    std::set<JobId> saving_;
    std::set<JobId> new_;  // not acknowledged yet
    JobId last_id_ = 0;
    QueueCounts counts_;
    std::vector<QueueNote> notes_;
};

}  // namespace larder::scheduler
