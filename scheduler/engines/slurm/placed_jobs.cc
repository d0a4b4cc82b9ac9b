#include "scheduler/engines/slurm/placed_jobs.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <iterator>
#include <ranges>
#include <utility>

namespace larder::scheduler::slurm {
namespace {

constexpr std::int64_t kRestPeriod_s = 2;  // between a requeue and the next start
constexpr std::string_view kPrefix = "slurm-";
constexpr std::int64_t kRefusalFirst_s = 2;
constexpr std::int64_t kRefusalMost_s = 300;
constexpr std::uint32_t kRequeuesMax = 5;
constexpr std::int64_t kClockSkew_s = 2;  // of the machines of slurmctld and the allocator
constexpr std::size_t kNoteMax = 100;     // a mark has to fit its column

EngineEvent event_of(EngineEvent::Kind kind, std::string message = "") {
    EngineEvent event;
    event.kind = kind;
    event.message = std::move(message);
    return event;
}

void set_id(EngineEvent& event, const AttemptId& id) {
    event.queue = id.queue;
    event.job = id.job;
    event.attempt = id.attempt;
}

// An event's own time, if Slurm says it. 0: it does not.
std::optional<double> time_of(std::int64_t unix_s) {
    return unix_s == 0 ? std::nullopt : std::optional(static_cast<double>(unix_s));
}

EngineEvent stopped_event() {
    EngineEvent event = event_of(EngineEvent::Kind::ended);
    event.exit_code = 0;
    event.was_stopping = true;
    return event;
}

EngineEvent rejection(std::string why) {
    return event_of(EngineEvent::Kind::rejected, std::move(why));
}

void set_exit(EngineEvent& event, const JobRow& row) {
    if (WIFSIGNALED(row.wait_status)) {
        event.exit_signal = WTERMSIG(row.wait_status);
    } else if (row.state == "COMPLETED" || WEXITSTATUS(row.wait_status) != 0) {
        event.exit_code = WEXITSTATUS(row.wait_status);
    } else {
        event.exit_signal = SIGKILL;  // Slurm ended it: its time limit, its memory
    }
    if (row.state != "COMPLETED" && row.state != "FAILED") event.message = "Slurm's state of the job is " + row.state;
}

// True for a reason that no other node would mend, or that does not pass soon: a limit of Slurm's own. The job would
// keep its GPUs idle. All other reasons are waited for.
bool is_refusal(std::string_view reason) {
    static constexpr std::array<std::string_view, 16> kBeginnings{
        "QOS",          "Assoc",      "Max",          "Partition",   "Dependency", "Licenses",
        "Reservation",  "BadConstr",  "Account",      "Invalid",     "JobArray",   "ReqNodeNotAvail",
        "Nodes_requir", "Node_count", "Cluster_fail", "Nodes requir"};
    return std::ranges::any_of(kBeginnings, [&](std::string_view text) { return reason.starts_with(text); });
}

// Returns what jobs have in common that this limit refuses alike. Empty: it says nothing about others.
std::string limit_of(const std::string& key, const JobRow& row, std::string_view reason) {
    if (reason.starts_with("QOS") || reason.starts_with("Assoc")) return row.limits_key;
    return reason == "JobArrayTaskLimit" ? key.substr(0, key.find('_')) : "";
}

std::string joined(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
    return text;
}

}  // namespace

std::optional<std::string> PlacedJobs::key_of(std::string_view name) {
    if (!name.starts_with(kPrefix)) return std::nullopt;
    return std::string(name.substr(kPrefix.size()));
}

// --- looks

void PlacedJobs::look(const Rows& rows, const std::vector<NodeRow>& nodes, std::int64_t unix_s) {
    unix_s_ = unix_s;
    if (!has_looked_) adopt(rows);
    has_looked_ = true;
    look_at_nodes(nodes);
    to_submit_.clear();
    to_cancel_.clear();
    for (auto& [key, attempt] : attempts_) {
        const auto row = rows.find(key);
        decide(key, attempt, row == rows.end() ? nullptr : &row->second, unix_s);
    }
    for (const auto& [key, row] : rows) {
        if (!attempts_.contains(key)) decide_free(key, row, rows, unix_s);
    }
    name_refused_jobs(rows);
    for (const std::string& key : mirrored_) {
        if (!rows.contains(key)) cancel_in_larder(key);
    }
    std::erase_if(over_, [&](const std::string& key) { return !rows.contains(key); });
    std::erase_if(refusals_, [&](const auto& refusal) { return !rows.contains(refusal.first); });
    sweep();
    // Larder keeps the order in which users have submitted, which is that of the numbers.
    std::ranges::sort(to_submit_, {}, [](const JobRow* row) {
        return std::pair(std::min(row->key.find('_'), row->key.size()), std::string_view(row->key));
    });
}

// A job that a former agent has marked but not released has not begun: Larder tells again to start it.
void PlacedJobs::adopt(const Rows& rows) {
    for (const auto& [key, row] : rows) {
        if (!row.mark || !row.mark->attempt) continue;
        const bool same = row.restarts == row.mark->restarts;
        if (row.stage == JobStage::pending && row.held && same) continue;
        if (row.stage == JobStage::ended && !same) continue;
        Attempt attempt;
        attempt.id = *row.mark->attempt;
        attempt.nodes = expand_nodes(row.nodes);
        attempt.grace_s = row.mark->grace_s;
        attempt.restarts = row.mark->restarts;
        attempt.placed = true;
        attempt.had_ended = row.stage == JobStage::ended;
        attempt.begun = row.stage != JobStage::pending || !same;
        attempt.stop_wanted = row.mark->kill_unix_s.has_value();
        attempt.kill_unix_s = row.mark->kill_unix_s;
        attempts_.emplace(key, std::move(attempt));
    }
}

void PlacedJobs::look_at_nodes(const std::vector<NodeRow>& nodes) {
    std::map<std::string, std::uint32_t> ours;
    for (const auto& [_, attempt] : attempts_) {
        for (const auto& [node, gpus] : attempt.gpus_by_node) ours[node] += gpus;
        // After a restart of the agent, the numbers of GPUs are not known. All of the node counts as ours.
        if (attempt.gpus_by_node.empty()) {
            for (const std::string& node : attempt.nodes) ours[node] += kGpusPerNodeMax;
        }
    }
    std::map<std::string, std::uint32_t> foreign;
    std::map<std::string, EngineEvent> now;
    for (const NodeRow& node : nodes) {
        const std::uint32_t used = node.gpus_used - std::min(node.gpus_used, ours[node.name]);
        if (used > 0) foreign[node.name] = used;
        EngineEvent event = event_of(EngineEvent::Kind::node_back);
        event.node = node.name;
        event.inventory = {.gpus = std::min(node.gpus, kGpusPerNodeMax), .gpu_type = node.gpu_type, .labels = {}};
        if (node.use == NodeUse::down) {
            event.kind = EngineEvent::Kind::node_lost;
            event.message = "Slurm's state of the node is " + node.state;
        } else if (node.use == NodeUse::closed) {
            event.kind = EngineEvent::Kind::node_drained;
            event.message = "Slurm's state of the node is " + node.state;
        } else if (node.has_mixed_gpus) {
            event.kind = EngineEvent::Kind::node_drained;
            event.message = "the node has GPUs of several types";
        } else if (used > 0 && foreign_gpus_.contains(node.name)) {
            // The rows of nodes and of jobs are not of the same instant, so one look does not tell.
            event.kind = EngineEvent::Kind::node_drained;
            event.message = "jobs of Slurm that Larder has not placed use GPUs there";
        }
        const auto before = nodes_.find(node.name);
        const bool is_same =
            before != nodes_.end() && before->second.kind == event.kind && before->second.inventory == event.inventory;
        if (!is_same) events_.push_back(event);
        now.emplace(node.name, std::move(event));
    }
    for (const auto& [name, before] : nodes_) {
        if (now.contains(name)) continue;
        const std::int64_t since_unix_s = missing_since_.try_emplace(name, unix_s_).first->second;
        // One answer may lack a node whose jobs run, and Larder stops the jobs of a removed node.
        const bool is_gone = unix_s_ - since_unix_s >= kMissingMost_s;
        EngineEvent event = event_of(is_gone ? EngineEvent::Kind::node_removed : EngineEvent::Kind::node_lost,
                                     "Slurm no longer has the node");
        event.node = name;
        event.inventory = before.inventory;
        if (before.kind != event.kind || before.message != event.message) events_.push_back(event);
        now.emplace(name, std::move(event));
    }
    std::erase_if(missing_since_, [&](const auto& missing) {
        return std::ranges::find(nodes, missing.first, &NodeRow::name) != nodes.end();
    });
    nodes_ = std::move(now);
    foreign_gpus_ = std::move(foreign);
}

// --- one attempt

void PlacedJobs::decide(const std::string& key, Attempt& attempt, const JobRow* row, std::int64_t unix_s) {
    if (finished_.contains(key)) return;
    if (row == nullptr) {
        cancel_in_larder(key);
        const bool was_there = attempt.placed;
        return finish(key, attempt,
                      was_there ? event_of(EngineEvent::Kind::lost, "Slurm no longer knows the job")
                                : rejection("Slurm no longer knows the job"));
    }
    switch (row->stage) {
        case JobStage::completing: return;  // its processes may still run
        case JobStage::ended: return decide_ended(key, attempt, *row);
        case JobStage::running: return decide_running(key, attempt, *row, unix_s);
        case JobStage::pending: return decide_pending(key, attempt, *row, unix_s);
    }
}

void PlacedJobs::decide_ended(const std::string& key, Attempt& attempt, const JobRow& row) {
    const bool was_stopping = attempt.stop_wanted && !attempt.signal_was_late;
    if (row.state == "CANCELLED") {
        cancel_in_larder(key);
        EngineEvent event = event_of(EngineEvent::Kind::ended, "cancelled in Slurm");
        event.exit_signal = SIGTERM;
        event.was_stopping = true;
        event.stopped_by = "scancel";
        event.at_s = time_of(row.ended_unix_s);
        return finish(key, attempt, std::move(event));
    }
    if (!attempt.placed) {
        cancel_in_larder(key);
        return finish(key, attempt, rejection("the job has ended in Slurm"));
    }
    if (attempt.leaves_with) {
        cancel_in_larder(key);
        return finish(key, attempt, *attempt.leaves_with);
    }
    // The former agent may have reported the end already. The job runs again only if Larder still wants that.
    if (was_stopping && attempt.had_ended && !knows_queue_) return;
    const bool runs_again = !attempt.had_ended || mirrored_.contains(key);
    // Slurm runs a job again only if it is requeued.
    if (was_stopping && runs_again && row.may_requeue && attempt.requeues < kRequeuesMax) {
        ++attempt.requeues;
        commands_.updates.push_back({"requeuehold", key});
        return;
    }
    EngineEvent event = event_of(EngineEvent::Kind::ended);
    if (row.state == "NODE_FAIL" && !was_stopping) {
        event = event_of(EngineEvent::Kind::lost, "Slurm's state of the job is NODE_FAIL");
    } else if (row.state == "PREEMPTED" && !was_stopping) {
        event = event_of(EngineEvent::Kind::evicted, "preempted by Slurm");
    } else {
        set_exit(event, row);
        event.was_stopping = was_stopping;
    }
    if (event.kind != EngineEvent::Kind::ended || was_stopping) cancel_in_larder(key);
    event.at_s = time_of(row.ended_unix_s);
    finish(key, attempt, std::move(event));
}

void PlacedJobs::decide_running(const std::string& key, Attempt& attempt, const JobRow& row, std::int64_t unix_s) {
    if (!attempt.placed) return finish(key, attempt, rejection("Slurm runs the job already"));
    if (row.restarts > attempt.restarts) {
        // It was requeued, and Slurm has started it again before Larder has decided.
        commands_.updates.push_back({"requeuehold", key});
        return;
    }
    attempt.leaves_with.reset();
    attempt.begun = true;
    if (attempt.nodes.empty()) attempt.nodes = expand_nodes(row.nodes);
    EngineEvent started = event_of(EngineEvent::Kind::started);
    started.at_s = time_of(row.started_unix_s);
    report(attempt, std::move(started));
    if (!std::exchange(attempt.asked_devices, true)) commands_.asks.push_back(key);
    if (!attempt.stop_wanted) return;
    if (!attempt.kill_unix_s) {
        attempt.kill_unix_s = unix_s + static_cast<std::int64_t>(std::ceil(attempt.grace_s));
        JobMark mark = row.mark.value_or(JobMark{});
        mark.attempt = attempt.id;
        mark.restarts = attempt.restarts;
        mark.grace_s = attempt.grace_s;
        mark.kill_unix_s = attempt.kill_unix_s;
        write_mark(key, mark, false);
    }
    if (!attempt.signalled) {
        attempt.signalled = true;
        commands_.signals.push_back(key);
    } else if (unix_s >= *attempt.kill_unix_s) {
        // A signal for the batch script does not end a job of salloc or srun.
        (row.may_requeue ? commands_.kills : commands_.cancels).push_back(key);
    }
}

void PlacedJobs::decide_pending(const std::string& key, Attempt& attempt, const JobRow& row, std::int64_t unix_s) {
    static_cast<void>(unix_s);
    const bool was_requeued = attempt.placed && row.restarts > attempt.restarts;
    if (!attempt.leaves_with && was_requeued) {
        if (attempt.stop_wanted) {
            attempt.leaves_with = stopped_event();
        } else if (is_on_lost_node(attempt)) {
            attempt.leaves_with = event_of(EngineEvent::Kind::lost, "its node failed, and Slurm has requeued the job");
        } else {
            attempt.leaves_with = event_of(EngineEvent::Kind::evicted, "requeued in Slurm");
        }
        attempt.leaves_with->at_s = time_of(row.submitted_unix_s);
    }
    if (!attempt.leaves_with && attempt.stop_wanted) attempt.leaves_with = stopped_event();
    if (attempt.leaves_with) return take_back(key, attempt, row);
    // slurmd refuses a job that starts again in the second in which it was stopped: its credential is revoked.
    const std::int64_t since_s = unix_s - row.submitted_unix_s;
    if (row.held && row.restarts > 0 && since_s >= 0 && since_s <= kRestPeriod_s) return;
    // A former agent's mark does not count: its place may be cleared already.
    const bool is_marked =
        attempt.placed && row.mark && row.mark->attempt == attempt.id && row.mark->restarts == row.restarts;
    if (!is_marked) return row.held ? place(key, attempt, row) : hold(key);
    if (row.held) {
        commands_.releases.push_back(key);
        return;
    }
    // Larder removes the time at which a requeued job may begin; that of a new job is its user's.
    if (is_refusal(row.reason) || (row.reason == "BeginTime" && row.restarts == 0)) {
        attempt.leaves_with = rejection(row.reason);
        attempt.limit = limit_of(key, row, row.reason);
        return take_back(key, attempt, row);
    }
    // Slurm has not looked at it yet.
    if (row.reason == "None") return;
    report(attempt, event_of(EngineEvent::Kind::pending, row.reason));
}

void PlacedJobs::place(const std::string& key, Attempt& attempt, const JobRow& row) {
    const bool fits =
        attempt.gpus_by_node.size() == row.nodes_wanted &&
        std::ranges::all_of(attempt.gpus_by_node, [&](const auto& part) { return part.second == row.gpus_per_node; });
    if (!fits) {
        return finish(key, attempt,
                      rejection("the job wants " + std::to_string(row.gpus_per_node) + " GPUs on each of " +
                                std::to_string(row.nodes_wanted) + " nodes, and its place is another"));
    }
    if (!row.mark) return finish(key, attempt, rejection("job_submit.lua has not seen the job"));
    JobMark mark = *row.mark;
    mark.attempt = attempt.id;
    mark.restarts = row.restarts;
    mark.grace_s = attempt.grace_s;
    mark.kill_unix_s.reset();
    mark.note.clear();
    attempt.restarts = row.restarts;
    attempt.placed = true;
    std::vector<std::string> words{"update", "JobId=" + key, "ReqNodeList=" + joined(attempt.nodes),
                                   "AdminComment=" + text_of(mark)};
    // Slurm makes a job wait for two minutes after it was requeued.
    if (row.restarts > 0) words.emplace_back("StartTime=now");
    commands_.placements.push_back({.key = key, .words = std::move(words)});
}

// Holds the job and removes its mark and nodes. The event follows once Slurm shows that.
void PlacedJobs::take_back(const std::string& key, Attempt& attempt, const JobRow& row) {
    const bool is_marked = row.mark && row.mark->attempt;
    if (row.held && !is_marked) return finish(key, attempt, *attempt.leaves_with);
    if (!row.held) hold(key);
    if (!is_marked) return;
    JobMark mark = *row.mark;
    mark.attempt.reset();
    write_mark(key, mark, true);
}

bool PlacedJobs::is_on_lost_node(const Attempt& attempt) const {
    return std::ranges::any_of(attempt.nodes, [&](const std::string& node) {
        const auto known = nodes_.find(node);
        return known != nodes_.end() && (known->second.kind == EngineEvent::Kind::node_lost ||
                                         known->second.kind == EngineEvent::Kind::node_removed);
    });
}

// --- jobs without an attempt

void PlacedJobs::decide_free(const std::string& key, const JobRow& row, const Rows& rows, std::int64_t unix_s) {
    if (row.stage == JobStage::ended) {
        over_.erase(key);
        return cancel_in_larder(key);
    }
    if (!row.mark) return;  // submitted before job_submit.lua was there: not ours
    if (row.stage == JobStage::running) {
        // Somebody else has released the job. One that cannot be requeued runs on, outside Larder.
        if (!row.may_requeue) return cancel_in_larder(key);
        commands_.updates.push_back({"requeuehold", key});
        return;
    }
    if (row.stage != JobStage::pending) return;
    if (over_.contains(key)) {
        commands_.cancels.push_back(key);
        return;
    }
    if (!row.held) return hold(key);
    if (row.mark->attempt) {
        JobMark mark = *row.mark;
        mark.attempt.reset();
        return write_mark(key, mark, true);
    }
    if (mirrored_.contains(key) || waits_for_others(row, rows)) return;
    const auto refusal = refusals_.find(key);
    if (refusal == refusals_.end() || refusal->second.retry_unix_s <= unix_s) to_submit_.push_back(&row);
}

// --- actions

void PlacedJobs::start(const PlacedStart& start, const Rows& rows, std::int64_t unix_s) {
    if (ended_.contains(start.id)) return;
    if (start.key.empty()) {
        return reject(start.id, "Slurm's jobs are submitted by sbatch, to one of Larder's partitions", true);
    }
    const auto known = attempts_.find(start.key);
    if (known != attempts_.end() && known->second.id == start.id) {
        if (known->second.gpus_by_node.empty()) known->second.gpus_by_node = start.gpus_by_node;
        return;
    }
    if (known != attempts_.end()) return reject(start.id, "the job's former attempt is not over in Slurm", false);
    Attempt attempt;
    attempt.id = start.id;
    attempt.grace_s = start.grace_s;
    attempt.gpus_by_node = start.gpus_by_node;
    for (const auto& [node, _] : start.gpus_by_node) attempt.nodes.push_back(node);
    const auto row = rows.find(start.key);
    auto& added = attempts_.emplace(start.key, std::move(attempt)).first->second;
    decide(start.key, added, row == rows.end() ? nullptr : &row->second, unix_s);
    sweep();
}

void PlacedJobs::stop(const AttemptId& id, const Rows& rows, std::int64_t unix_s) {
    if (ended_.contains(id)) return;
    const auto found = std::ranges::find_if(attempts_, [&](const auto& entry) { return entry.second.id == id; });
    if (found == attempts_.end()) {
        EngineEvent event = stopped_event();
        set_id(event, id);
        ended_[id] = event;
        events_.push_back(std::move(event));
        return;
    }
    auto& [key, attempt] = *found;
    attempt.stop_wanted = true;
    const auto row = rows.find(key);
    if (row != rows.end() && row->second.stage == JobStage::running) decide(key, attempt, &row->second, unix_s);
    sweep();
}

void PlacedJobs::refuse_placement(const std::string& key, const std::string& why) {
    const auto found = attempts_.find(key);
    if (found == attempts_.end()) return;
    finish(key, found->second, rejection("Slurm does not take the place: " + why));
    sweep();
}

void PlacedJobs::note_devices(const JobDevices& job) {
    const auto found = attempts_.find(job.key);
    if (found == attempts_.end() || !found->second.begun || job.devices.empty()) return;
    found->second.devices = job.devices;
    report(found->second, event_of(EngineEvent::Kind::started));
}

void PlacedJobs::note_late_signal(const std::string& key) {
    if (const auto found = attempts_.find(key); found != attempts_.end()) found->second.signal_was_late = true;
}

// --- jobs in Larder

void PlacedJobs::set_mirrored(const std::set<std::string>& keys, const std::map<std::string, EndedInLarder>& ended,
                              const Rows& rows) {
    for (const auto& [key, end] : ended) {
        const auto row = rows.find(key);
        if (row == rows.end() || keys.contains(key)) continue;
        // Slurm's job was submitted or requeued since: it is another one.
        if (row->second.submitted_unix_s > end.at_unix_s + kClockSkew_s) continue;
        if (end.was_cancelled || mirrored_.contains(key)) note_over(key, rows);
    }
    mirrored_ = {keys.begin(), keys.end()};
    knows_queue_ = true;
    cancelling_.clear();
    ended_by_themselves_.clear();
}

void PlacedJobs::note_refused(const std::string& key, const std::string& why, const Rows& rows, std::int64_t unix_s) {
    Refusal& refusal = refusals_[key];
    refusal.delay_s = refusal.delay_s == 0 ? kRefusalFirst_s : std::min(kRefusalMost_s, refusal.delay_s * 2);
    refusal.retry_unix_s = unix_s + refusal.delay_s;
    const auto row = rows.find(key);
    if (row == rows.end() || !row->second.mark) return;
    JobMark mark = *row->second.mark;
    mark.note = why.substr(0, kNoteMax);
    // The words of scontrol have neither blanks nor quotes.
    for (char& c : mark.note) {
        if (c == '"' || c == '\'' || c < ' ' || c > '~') c = '`';
        if (c == ' ') c = '_';
    }
    if (mark.note != row->second.mark->note) write_mark(key, mark, false);
}

void PlacedJobs::note_over(const std::string& key, const Rows& rows) {
    mirrored_.erase(key);
    cancelling_.erase(key);
    // An operator may requeue a job that has ended: then it is a new one.
    if (ended_by_themselves_.erase(key) > 0) return;
    const auto row = rows.find(key);
    if (row != rows.end() && row->second.stage != JobStage::ended) over_.insert(key);
}

// Larder's queue may have been read after the look, and may have some of these jobs by now.
std::vector<const JobRow*> PlacedJobs::to_submit() const {
    std::vector<const JobRow*> rows;
    rows.reserve(to_submit_.size());
    std::ranges::copy_if(to_submit_, std::back_inserter(rows),
                         [&](const JobRow* row) { return !mirrored_.contains(row->key) && !over_.contains(row->key); });
    return rows;
}

void PlacedJobs::cancel_in_larder(const std::string& key) {
    if (mirrored_.contains(key) && !cancelling_.contains(key)) to_cancel_.insert(key);
}

bool PlacedJobs::needs_nodes() const {
    return !has_looked_ || std::ranges::any_of(attempts_, [](const auto& entry) { return entry.second.nodes.empty(); });
}

// --- reports and commands

void PlacedJobs::hold(const std::string& key) {
    commands_.updates.push_back({"hold", key});
}

void PlacedJobs::write_mark(const std::string& key, const JobMark& mark, bool clears_nodes) {
    std::vector<std::string> words{"update", "JobId=" + key, "AdminComment=" + text_of(mark)};
    if (clears_nodes) words.emplace_back("ReqNodeList=");
    commands_.updates.push_back(std::move(words));
}

void PlacedJobs::report(Attempt& attempt, EngineEvent event) {
    set_id(event, attempt.id);
    if (event.kind == EngineEvent::Kind::started) event.devices = attempt.devices;
    const bool is_told = attempt.last && attempt.last->kind == event.kind && attempt.last->message == event.message &&
                         attempt.last->devices == event.devices;
    if (is_told) return;
    if (!event.at_s) event.at_s = static_cast<double>(unix_s_);
    attempt.last = event;
    events_.push_back(std::move(event));
}

void PlacedJobs::finish(const std::string& key, Attempt& attempt, EngineEvent event) {
    set_id(event, attempt.id);
    if (!event.at_s) event.at_s = static_cast<double>(unix_s_);
    ended_[attempt.id] = event;
    if (event.kind == EngineEvent::Kind::rejected && !attempt.limit.empty()) limited_[attempt.id] = attempt.limit;
    if (event.kind == EngineEvent::Kind::ended && !event.was_stopping) ended_by_themselves_.insert(key);
    events_.push_back(std::move(event));
    finished_.insert(key);
}

void PlacedJobs::reject(const AttemptId& id, std::string why, bool for_good) {
    EngineEvent event = rejection(std::move(why));
    event.for_good = for_good;
    set_id(event, id);
    ended_[id] = event;
    events_.push_back(std::move(event));
}

// A user may have hundreds of jobs that one limit refuses. If each were placed, it would hold GPUs idle until Slurm had
// said so, and all jobs behind them would wait.
void PlacedJobs::name_refused_jobs(const Rows& rows) {
    for (EngineEvent& event : events_) {
        const auto limited = limited_.find({.queue = event.queue, .job = event.job, .attempt = event.attempt});
        if (event.kind != EngineEvent::Kind::rejected || limited == limited_.end()) continue;
        for (const auto& [key, row] : rows) {
            const bool waits = row.stage == JobStage::pending && mirrored_.contains(key) && !attempts_.contains(key);
            if (waits && limit_of(key, row, event.message) == limited->second) {
                event.also_rejected.push_back(name_of(key));
            }
        }
    }
    limited_.clear();
}

void PlacedJobs::sweep() {
    for (const std::string& key : finished_) attempts_.erase(key);
    finished_.clear();
}

std::vector<EngineEvent> PlacedJobs::node_events() const {
    std::vector<EngineEvent> events;
    events.reserve(nodes_.size());
    for (const auto& [_, event] : nodes_) {
        if (event.kind != EngineEvent::Kind::node_removed) events.push_back(event);
    }
    return events;
}

std::vector<EngineEvent> PlacedJobs::attempt_events() const {
    std::vector<EngineEvent> events;
    events.reserve(attempts_.size() + ended_.size());
    for (const auto& [_, event] : ended_) events.push_back(event);
    for (const auto& [_, attempt] : attempts_) {
        EngineEvent event =
            attempt.last.value_or(event_of(attempt.begun ? EngineEvent::Kind::started : EngineEvent::Kind::pending));
        set_id(event, attempt.id);
        events.push_back(std::move(event));
    }
    return events;
}

}  // namespace larder::scheduler::slurm
