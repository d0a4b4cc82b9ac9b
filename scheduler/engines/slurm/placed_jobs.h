#pragma once

// Decides what the agent of docs/slurm.md#larder-decides does: the pure part, without processes, network or clock. Jobs
// of Larder's partitions are held in Slurm until Larder has placed them. Each look at Slurm gives the rows of squeue
// and sinfo. From the difference between them and what Larder wants follow commands for Slurm, events for Larder's
// engine, and jobs to submit to Larder or to cancel there. Decisions follow from states, not from changes: a command
// that was lost with a restart of slurmctld is given again after the next look. One thread.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scheduler/engines/slurm/slurm_state.h"
#include "scheduler/gpu_cluster.h"
#include "scheduler/live/engine.h"

namespace larder::scheduler::slurm {

// An attempt that Larder wants to start.
struct PlacedStart {
    AttemptId id;
    std::string key;  // of the Slurm job; empty: the Larder job was not made from one
    double grace_s = 30;
    std::vector<std::pair<std::string, std::uint32_t>> gpus_by_node;  // in the order of ranks
};

struct SlurmCommands {
    struct Place {
        std::string key;
        std::vector<std::string> words;  // of `scontrol update`
    };
    std::vector<Place> placements;                  // a job whose placement succeeds is released
    std::vector<std::vector<std::string>> updates;  // scontrol's words: marks, holds, requeues
    std::vector<std::string> signals;               // keys of jobs to send SIGTERM
    std::vector<std::string> releases;
    std::vector<std::string> kills;
    std::vector<std::string> cancels;
    std::vector<std::string> asks;  // keys of jobs whose GPUs' numbers are to be asked for

    bool empty() const {
        return placements.empty() && updates.empty() && signals.empty() && releases.empty() && kills.empty() &&
               cancels.empty() && asks.empty();
    }
};

// How a job ended in Larder.
struct EndedInLarder {
    bool was_cancelled = false;
    std::int64_t at_unix_s = 0;
};

class PlacedJobs {
public:
    using Rows = std::map<std::string, JobRow, std::less<>>;

    // Returns the name that a Slurm job has in Larder, and the key of such a name.
    static std::string name_of(std::string_view key) { return "slurm-" + std::string(key); }
    static std::optional<std::string> key_of(std::string_view name);

    // A node that Slurm's answers lack for so long is removed. Until then it is lost.
    static constexpr std::int64_t kMissingMost_s = 60;

    // Takes a look at Slurm. The first look finds the attempts of a former agent by their marks.
    void look(const Rows& rows, const std::vector<NodeRow>& nodes, std::int64_t unix_s);
    // Larder's actions.
    void start(const PlacedStart& start, const Rows& rows, std::int64_t unix_s);
    void stop(const AttemptId& id, const Rows& rows, std::int64_t unix_s);

    // Outcomes of commands.
    void refuse_placement(const std::string& key, const std::string& why);
    void note_devices(const JobDevices& job);
    void note_late_signal(const std::string& key);  // the job had ended before

    // Larder's jobs that have not ended, by their Slurm key, and those that its history has last: replaces what is
    // known. A job that is in neither is submitted again.
    void set_mirrored(const std::set<std::string>& keys, const std::map<std::string, EndedInLarder>& ended,
                      const Rows& rows);
    void note_submitted(const std::string& key) { mirrored_.insert(key); }
    void note_refused(const std::string& key, const std::string& why, const Rows& rows, std::int64_t unix_s);
    // The job has ended in Larder. It is cancelled in Slurm, unless it had ended there first.
    void note_over(const std::string& key, const Rows& rows);
    void note_cancelled(const std::string& key) { cancelling_.insert(key); }

    // Since the last call.
    SlurmCommands take_commands() { return std::exchange(commands_, {}); }
    std::vector<EngineEvent> take_events() { return std::exchange(events_, {}); }
    // Slurm jobs to submit to Larder, oldest first. Valid until the next look.
    std::vector<const JobRow*> to_submit() const;
    // Larder jobs whose Slurm job is gone.
    const std::set<std::string>& to_cancel() const { return to_cancel_; }
    // True if the next look needs all nodes of the jobs that run, however long their lists are.
    bool needs_nodes() const;

    // The full state for an agent that attaches. Ended attempts are in it until forget_ended().
    std::vector<EngineEvent> node_events() const;
    std::vector<EngineEvent> attempt_events() const;
    void forget_ended(const AttemptId& id) { ended_.erase(id); }

private:
    struct Attempt {
        AttemptId id;
        std::vector<std::pair<std::string, std::uint32_t>> gpus_by_node;  // empty after a restart of the agent
        std::vector<std::string> nodes;
        double grace_s = 30;
        std::uint32_t restarts = 0;
        bool placed = false;     // Slurm was told
        bool had_ended = false;  // before this agent looked first
        bool begun = false;
        bool stop_wanted = false;
        bool signalled = false;
        bool signal_was_late = false;
        bool asked_devices = false;
        std::vector<GrantedDevices> devices;
        std::uint32_t requeues = 0;  // tried
        std::optional<std::int64_t> kill_unix_s;
        std::optional<EngineEvent> leaves_with;  // the job is taken back; then this event is reported
        std::string limit;                       // the jobs that are refused along with it; empty: none
        std::optional<EngineEvent> last;
    };
    struct Refusal {
        std::int64_t retry_unix_s = 0;
        std::int64_t delay_s = 0;
    };
    using Attempts = std::map<std::string, Attempt, std::less<>>;

    void adopt(const Rows& rows);
    void look_at_nodes(const std::vector<NodeRow>& nodes);
    void decide(const std::string& key, Attempt& attempt, const JobRow* row, std::int64_t unix_s);
    void decide_ended(const std::string& key, Attempt& attempt, const JobRow& row);
    void decide_running(const std::string& key, Attempt& attempt, const JobRow& row, std::int64_t unix_s);
    void decide_pending(const std::string& key, Attempt& attempt, const JobRow& row, std::int64_t unix_s);
    void decide_free(const std::string& key, const JobRow& row, const Rows& rows, std::int64_t unix_s);
    void place(const std::string& key, Attempt& attempt, const JobRow& row);
    void take_back(const std::string& key, Attempt& attempt, const JobRow& row);
    bool is_on_lost_node(const Attempt& attempt) const;
    void hold(const std::string& key);
    void write_mark(const std::string& key, const JobMark& mark, bool clears_nodes);
    void report(Attempt& attempt, EngineEvent event);
    // The attempt is over: it is dropped with the next sweep.
    void finish(const std::string& key, Attempt& attempt, EngineEvent event);
    void reject(const AttemptId& id, std::string why, bool for_good);
    void name_refused_jobs(const Rows& rows);
    void cancel_in_larder(const std::string& key);
    void sweep();

    Attempts attempts_;  // by Slurm key
    std::set<std::string> finished_;
    std::map<AttemptId, EngineEvent> ended_;  // until Larder has acknowledged them
    std::map<std::string, EngineEvent> nodes_;
    std::map<std::string, std::int64_t> missing_since_;  // nodes that Slurm no longer has, Unix time
    std::map<std::string, std::uint32_t> foreign_gpus_;  // by node: used by jobs that are not ours, at the last look
    std::set<std::string, std::less<>> mirrored_;
    std::set<std::string, std::less<>> over_;    // ended in Larder, and Slurm has them still
    std::set<std::string> ended_by_themselves_;  // until Larder says that they have ended
    std::set<std::string> cancelling_;
    std::map<std::string, Refusal> refusals_;
    std::map<AttemptId, std::string> limited_;  // rejections of this look: the jobs that are refused along with it
    SlurmCommands commands_;
    std::vector<EngineEvent> events_;
    std::vector<const JobRow*> to_submit_;
    std::set<std::string> to_cancel_;
    bool has_looked_ = false;
    bool knows_queue_ = false;  // mirrored_ is Larder's, and not only what this agent has submitted
    std::int64_t unix_s_ = 0;
};

}  // namespace larder::scheduler::slurm
