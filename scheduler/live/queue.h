#pragma once

// The jobs that were submitted, and what becomes of each: a state machine without a clock, a process or a file. Users'
// wishes, decisions and the engine's events go in; the records that changed come out, to be put on record before
// anything is done about them. It keeps the placer's account in step with what jobs hold. One thread.
//
//   waiting -> placed -> starting -> running -> succeeded | failed
//      ^                    |           |
//      +---- stopping <-----+-----------+        cancelled: from anywhere, by way of stopping where it runs
//
// GPUs of a job that is stopping are free to be placed on, but who is placed there starts only when it is gone.

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
#include "scheduler/live/job_record.h"
#include "scheduler/placement/placer.h"

namespace larder::scheduler {

struct QueueCounts {
    std::uint64_t submitted = 0;
    std::uint64_t starts = 0;  // attempts
    std::uint64_t preemptions = 0;
    std::uint64_t lost = 0;
    std::map<Phase, std::uint64_t> ended;
    std::vector<double> waits_s;  // from submission to the first start; emptied by who counts them
};

// For people who watch.
struct QueueNote {
    enum class Kind : std::uint8_t { submitted, started, stopped, ended };
    Kind kind = Kind::submitted;
    std::string job;
    std::string text;  // a sentence without its full stop
};

class JobQueue {
public:
    // Both must outlive it, and the cluster's nodes keep their names. `history_max`: jobs that have ended and are still
    // kept.
    JobQueue(const GpuCluster& cluster, Placer& placer, std::size_t history_max);

    // A job of a former process, in the order of ids; then what each holds is placed again. Those whose GPUs are not
    // there any more, or not theirs, are to stop.
    void restore(JobRecord record);
    void take_up(double now_s);

    // No job gets this number, or a lower one, from now on.
    void number_from(JobId last) { last_id_ = std::max(last_id_, last); }

    // All of them or none. `limits` as check_submission() has it; `taken` says whether a name is in use elsewhere. The
    // caller puts them on record, then acknowledges or withdraws them. Until then nobody finds them, and no decision is
    // about them.
    Result<std::vector<JobId>> submit(std::span<const Submission> jobs, const SubmissionLimits& limits,
                                      const std::function<bool(const std::string& name)>& taken);
    void acknowledge(std::span<const JobId> jobs, double now_s);
    // They could not be put on record, and never were.
    void withdraw(std::span<const JobId> jobs);
    // changed: it has ended already.
    Result<void> cancel(JobId job, const std::string& by, double now_s);

    // Those a decision is about, by id: nothing left to wait for but GPUs, or running.
    std::vector<JobId> schedulable() const;
    // `ids`: by index in the snapshot that was decided on. `by`: the policy, for the log.
    void apply(const Actions& actions, std::span<const JobId> ids, std::string_view by, double now_s);
    void set_waits_for(JobId job, WaitsFor why, const std::string& text, double now_s);
    // Placed jobs whose GPUs are clear become starting.
    void begin_starts(double now_s);
    // The engine's events but those of nodes.
    void take(const EngineEvent& event, double now_s);
    // Who was to start there, and is not known to the engine yet, waits again.
    void lose_node(std::string_view node, double now_s);
    // Which cells jobs hold by now, into their records: to be told before these are written.
    void note_cells();

    const std::map<JobId, JobRecord>& jobs() const { return jobs_; }
    const std::set<JobId>& active() const { return active_; }
    JobRecord& job(JobId id) { return jobs_.at(id); }
    void changed(JobId id) { changed_.insert(id); }
    // By number, or by name: then the one that has not ended, or else the last that had it.
    Result<JobId> find(std::string_view number_or_name) const;
    JobId last_id() const { return last_id_; }
    QueueCounts& counts() { return counts_; }
    const QueueCounts& counts() const { return counts_; }
    std::vector<QueueNote> take_notes() { return std::exchange(notes_, {}); }

    // Ids whose record is to be written; those not in jobs() any more, removed.
    const std::set<JobId>& unsaved() const { return changed_; }
    // Those are being written, and are no longer unsaved unless they change again; then they are saved, or are not.
    void saving() { saving_ = std::exchange(changed_, {}); }
    void saved() { saving_.clear(); }
    void save_failed() { changed_.merge(saving_); }

    Placement placement_of(const Allotment& held) const;  // empty: a node of it is not there any more
    std::uint32_t type_index(const std::string& gpu_type) const;
    std::uint32_t node_index(std::string_view name) const;  // the number of nodes: it is not there any more

private:
    Allotment allotment_of(const Start& start, std::span<const JobId> ids) const;
    std::vector<HeldCell> cells_of(const Allotment& held) const;
    void preempt(JobRecord& job, std::string_view by, double now_s);
    void place(JobRecord& job, Allotment held, bool moved, double now_s);
    void stop(JobRecord& job, StopCause cause);
    void end(JobRecord& job, Phase how, const std::string& why, double now_s);
    void end_with_dependents(JobRecord& job, Phase how, const std::string& why, double now_s);
    void trim_history();
    void wait_again(JobRecord& job, double now_s);
    void ended(JobRecord& job, const EngineEvent& event, double now_s);
    void lost(JobRecord& job, const EngineEvent& event, double now_s);
    void tell_dependents(const JobRecord& job, double now_s);
    void look_at_dependencies(JobId id, double now_s);
    bool gpus_are_clear(const JobRecord& job) const;
    // The placer's account of it, if it has one; guests take over what their host leaves.
    void release(const JobRecord& job, double now_s);

    const GpuCluster& cluster_;
    std::unordered_map<std::string_view, std::uint32_t> node_by_name_;
    Placer& placer_;
    std::size_t history_max_;
    std::map<JobId, JobRecord> jobs_;
    std::set<JobId> active_;  // that have not ended
    std::set<std::pair<double, JobId>> history_;
    std::map<std::string, JobId, std::less<>> by_name_;  // the last that had it
    std::set<JobId> changed_;
    std::set<JobId> saving_;
    std::set<JobId> new_;  // not acknowledged yet
    JobId last_id_ = 0;
    QueueCounts counts_;
    std::vector<QueueNote> notes_;
};

}  // namespace larder::scheduler
