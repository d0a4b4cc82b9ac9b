#include "scheduler/live/queue.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <functional>
#include <ranges>

#include "base/units.h"
#include "scheduler/live/dependencies.h"

namespace larder::scheduler {
namespace {

// A job whose process is lost this many times in a row fails: the cause must be the job itself.
constexpr std::uint32_t kLostMax = 5;
// How long a job that the engine did not begin waits before it is placed again, the first time.
constexpr double kRetryFirst_s = 1;
// A process that ran this long before it was lost begins a new row: a job that gets on is not the cause.
constexpr double kProgressAtLeast_s = 600;

std::string how_it_ended(const EngineEvent& event) {
    if (!event.message.empty()) return event.message;
    if (event.exit_signal) return "signal " + std::to_string(*event.exit_signal);
    return "exit code " + std::to_string(event.exit_code.value_or(0));
}

// The account of a submitter: a user of this machine, or a token.
std::string account_of(const Submission& job) {
    return job.user ? "uid " + std::to_string(job.user->uid) : "token " + job.submitter;
}

bool is_on_node(const std::optional<Allotment>& on, std::string_view node) {
    return on && std::ranges::find(on->gpus, node, &NamedGpus::node) != on->gpus.end();
}

// True if somebody other than the scheduler stopped the job: an operator, a service manager, a machine that shuts down.
// The scheduler puts a stop on record before it tells the engine.
bool is_stop_from_outside(const JobRecord& job, const EngineEvent& event) {
    return job.phase != Phase::stopping && (event.was_stopping || event.stop_came_late);
}

}  // namespace

JobQueue::JobQueue(const GpuCluster& cluster, Placer& placer, std::size_t history_max, std::uint64_t bytes_max)
    : cluster_(cluster), placer_(placer), history_max_(history_max), bytes_max_(bytes_max) {
    for (std::uint32_t n = 0; n < cluster.nodes.size(); ++n) add_node(n);
}

// --- users' requests

Result<std::vector<JobId>> JobQueue::submit(std::span<const Submission> jobs, const SubmissionLimits& limits,
                                            const std::function<bool(const std::string& name)>& taken) {
    std::set<std::string_view> names;
    const auto where = [&](const Submission& job) {
        if (jobs.size() == 1) return std::string("job");
        return "jobs[" + std::to_string(&job - jobs.data()) + "]";
    };
    for (const Submission& job : jobs) {
        if (auto good = check_submission(job, limits); !good) return std::unexpected(good.error().within(where(job)));
        if (job.name.empty()) continue;
        const auto before = by_name_.find(job.name);
        const bool used = before != by_name_.end() && active_.contains(before->second);
        if (used || taken(job.name) || !names.insert(job.name).second) {
            return fail(ErrorCode::already_exists, where(job) + ": there is already a job named \"" + job.name + "\"");
        }
    }
    if (auto fits = check_room(jobs, limits.by); !fits) return std::unexpected(fits.error());
    const auto earlier = [&](const std::string& name) -> std::optional<EarlierJob> {
        const auto id = find(name);
        if (!id) return std::nullopt;
        const JobRecord& job = jobs_.at(*id);
        return EarlierJob{.id = *id,
                          .succeeded = job.phase == Phase::succeeded,
                          .ended = has_ended(job.phase) ? std::string(past(job.phase)) : ""};
    };
    const JobId first = last_id_ + 1;
    auto after = resolve_dependencies(jobs, first, earlier);
    if (!after) return std::unexpected(after.error());

    std::vector<JobId> ids;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        JobRecord record{.id = ++last_id_, .asked = jobs[i], .after = std::move((*after)[i])};
        record.asked.tenant = tenant_of(jobs[i], limits).value_or(jobs[i].tenant);
        if (record.asked.name.empty()) record.asked.name = "job-" + std::to_string(record.id);
        record.submitted_s = limits.now_s;
        record.state.waiting_since_s = limits.now_s;
        add_log(record, limits.now_s, "submitted by tenant " + record.asked.tenant);
        ids.push_back(record.id);
        by_name_[record.asked.name] = record.id;
        if (!record.after.empty()) dependents_.insert(record.id);
        count_active(record.asked, true);
        new_.insert(record.id);
        const JobId id = record.id;
        active_.insert(jobs_.emplace(id, std::move(record)).first->second);
    }
    return ids;
}

Result<void> JobQueue::check_room(std::span<const Submission> jobs, const Submitter& by) const {
    std::uint64_t asked_bytes = 0;
    for (const Submission& job : jobs) asked_bytes += record_bytes(job);
    const auto check = [&](const std::string& who, std::uint64_t used, std::uint64_t most) -> Result<void> {
        if (asked_bytes <= most - std::min(used, most)) return {};
        return fail(ErrorCode::no_space, who + " in the queue take " + format_bytes(used) + " of at most " +
                                             format_bytes(most) + ", and the jobs of this request take " +
                                             format_bytes(asked_bytes) + " more: wait until some have ended");
    };
    if (auto fits = check("all jobs", active_bytes_, bytes_max_); !fits || by.is_operator) return fits;
    const auto own = submitter_bytes_.find(account_of(jobs.front()));
    return check("your jobs", own == submitter_bytes_.end() ? 0 : own->second, bytes_max_ / 4);
}

void JobQueue::count_active(const Submission& job, bool is_added) {
    const std::uint64_t bytes = record_bytes(job);
    const std::string account = account_of(job);
    std::uint64_t& own = submitter_bytes_[account];
    own = is_added ? own + bytes : own - bytes;
    active_bytes_ = is_added ? active_bytes_ + bytes : active_bytes_ - bytes;
    if (own == 0) submitter_bytes_.erase(account);
}

void JobQueue::acknowledge(std::span<const JobId> jobs, double now_s) {
    counts_.submitted += jobs.size();
    for (const JobId id : jobs) {
        const JobRecord& job = jobs_.at(id);
        notes_.push_back({QueueNote::Kind::submitted, job.asked.name,
                          "job " + title(job) + " is submitted by tenant " + job.asked.tenant});
        new_.erase(id);
    }
    for (const JobId id : jobs) check_dependencies(id, now_s);
}

// A job that this job waits for may have ended while this job was being put on record.
void JobQueue::check_dependencies(JobId id, double now_s) {
    const auto job = jobs_.find(id);
    if (job == jobs_.end() || has_ended(job->second.phase)) return;
    const std::vector<JobId> after = job->second.after;
    for (const JobId before : after) {
        const auto at = jobs_.find(before);
        if (at == jobs_.end()) {
            return end(job->second, Phase::cancelled,
                       "job " + std::to_string(before) + ", which it waits for, has ended and is forgotten", now_s);
        }
        if (!has_ended(at->second.phase)) continue;
        tell_dependents(at->second, now_s);
        if (!active_.contains(id)) return;
    }
}

void JobQueue::withdraw(std::span<const JobId> jobs) {
    for (const JobId id : jobs) {
        const auto at = jobs_.find(id);
        const std::string name = at->second.asked.name;
        by_name_.erase(name);
        count_active(at->second.asked, false);
        active_.erase(id);
        jobs_.erase(at);
        new_.erase(id);
        changed_.insert(id);
        // The name stands for an earlier job again.
        for (const auto& [other, job] : jobs_) {
            if (job.asked.name == name) by_name_[name] = other;
        }
    }
}

Result<void> JobQueue::cancel(JobId id, const std::string& by, double now_s) {
    JobRecord& job = jobs_.at(id);
    if (has_ended(job.phase)) {
        return fail(ErrorCode::changed, "job " + title(job) + " " + std::string(past(job.phase)) + " already");
    }
    changed_.insert(id);
    const std::string why = "cancelled by " + by;
    add_log(job, now_s, why);
    if (!is_with_engine(job.phase)) {
        release(job, now_s);
        end(job, Phase::cancelled, why, now_s);
        return {};
    }
    release(job, now_s);
    job.end_reason = why;
    stop(job, StopCause::cancelled);
    return {};
}

Result<JobId> JobQueue::find(std::string_view number_or_name) const {
    JobId id = 0;
    const std::string text(number_or_name);
    const char* const end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, id);
    if (error == std::errc{} && stopped == end && jobs_.contains(id) && !new_.contains(id)) return id;
    const auto named = by_name_.find(number_or_name);
    if (named != by_name_.end() && !new_.contains(named->second)) return named->second;
    return fail(ErrorCode::not_found, "there is no job \"" + text + "\"");
}

// --- events of the engine

void JobQueue::take(const EngineEvent& event, double now_s) {
    const auto at = jobs_.find(event.job);
    if (at == jobs_.end()) return;
    JobRecord& job = at->second;
    if (event.attempt != job.attempt || !is_with_engine(job.phase)) return;
    changed_.insert(job.id);
    // The engine's clock may differ from ours.
    if (event.at_s) now_s = std::clamp(*event.at_s, std::min(job.state.started_s, now_s), now_s);
    switch (event.kind) {
        case EngineEvent::Kind::pending:
            if (job.phase != Phase::starting || job.pending_for == event.message) return;
            job.pending_for = event.message;
            add_log(job, now_s, "is pending: " + event.message);
            return;
        case EngineEvent::Kind::resized: return finish_resize(job, event, now_s);
        case EngineEvent::Kind::resize_refused:
            if (!job.is_resizing || event.resize != job.resizes) return;
            return give_up_resize(job, "cannot be resized: " + event.message, now_s);
        case EngineEvent::Kind::started:
            if (!event.devices.empty() && event.resize == job.resizes) job.devices = event.devices;
            if (job.phase == Phase::running) return finish_resize(job, event, now_s);
            if (job.phase != Phase::starting) return;
            set_phase(job, Phase::running);
            job.state.started_s = now_s;
            job.rejected = 0;
            job.pending_for.clear();
            add_log(job, now_s, "runs on " + text_of(*job.held));
            notes_.push_back(
                {QueueNote::Kind::started, job.asked.name, "job " + title(job) + " runs on " + text_of(*job.held)});
            return;
        case EngineEvent::Kind::ended: return handle_end(job, event, now_s);
        case EngineEvent::Kind::lost: return handle_loss(job, event, now_s);
        case EngineEvent::Kind::rejected: return handle_rejection(job, event, now_s);
        case EngineEvent::Kind::evicted: return handle_eviction(job, event, now_s);
        case EngineEvent::Kind::node_lost:
        case EngineEvent::Kind::node_drained:
        case EngineEvent::Kind::node_back:
        case EngineEvent::Kind::node_added:
        case EngineEvent::Kind::node_removed:
        case EngineEvent::Kind::node_resized: return;
    }
}

bool JobQueue::is_expected_on(const JobRecord& job, std::string_view node) const {
    return (job.phase == Phase::placed && is_on_node(job.held, node)) ||
           (job.phase == Phase::stopping && is_on_node(job.next, node)) ||
           (job.phase == Phase::running && is_on_node(job.next, node) && !is_on_node(job.held, node));
}

std::vector<JobId> JobQueue::ids_expected_on(std::string_view node) const {
    return active_.ids_if([&](const JobRecord& job) { return is_expected_on(job, node); });
}

void JobQueue::give_up_place(JobRecord& job, const std::string& why, double now_s) {
    changed_.insert(job.id);
    add_log(job, now_s, why + " before the job began there");
    if (job.phase == Phase::running) return take_back_growth(job, now_s);
    release(job, now_s);
    if (job.phase == Phase::placed) {
        requeue(job, now_s);
    } else {
        stop(job, StopCause::preempted);
    }
}

void JobQueue::close_node(std::string_view node, std::string_view what, double now_s) {
    for (const JobId id : ids_expected_on(node)) {
        JobRecord& job = jobs_.at(id);
        if (!is_expected_on(job, node)) continue;
        give_up_place(job, "node " + std::string(node) + " " + std::string(what), now_s);
    }
}

std::uint32_t JobQueue::gpus_held_on(std::string_view node) const {
    std::uint32_t held = 0;
    for (const JobRecord* const job : holders_.records()) {
        const Allotment* const placed = job->placed();
        if (placed == nullptr || placed->packed_with) continue;
        for (const NamedGpus& share : placed->gpus) {
            if (share.node == node) held += static_cast<std::uint32_t>(std::popcount(share.gpus));
        }
    }
    return held;
}

void JobQueue::shrink_node(std::string_view node, double now_s) {
    std::uint32_t gpus = 0;
    std::string_view type;
    for (const std::uint32_t n : nodes_named(node)) {
        gpus += cluster_.nodes[n].gpus;
        if (cluster_.nodes[n].gpus > 0) type = cluster_.gpu_types[cluster_.nodes[n].gpu_type];
    }
    std::uint32_t held = gpus_held_on(node);
    for (const JobId id : ids_expected_on(node) | std::views::reverse) {
        JobRecord& job = jobs_.at(id);
        if (!is_expected_on(job, node)) continue;
        if (held <= gpus && job.placed()->gpu_type == type) continue;
        give_up_place(job, "node " + std::string(node) + " was given other GPUs", now_s);
        held = gpus_held_on(node);
    }
}

void JobQueue::stop_on_removed_node(std::string_view node, double now_s) {
    const auto is_to_stop = [&](const JobRecord& job) {
        const bool runs = job.phase != Phase::stopping && is_with_engine(job.phase);
        return runs && is_on_node(job.next ? job.next : job.held, node);
    };
    for (const JobId id : holders_.ids_if(is_to_stop)) {
        JobRecord& job = jobs_.at(id);
        if (!is_to_stop(job)) continue;
        changed_.insert(id);
        ++counts_.evictions;
        add_log(job, now_s, "node " + std::string(node) + " was removed: the job is stopped");
        release(job, now_s);
        stop(job, StopCause::node_removed);
    }
}

void JobQueue::time_out_starts(double timeout_s, double since_s, double now_s) {
    const std::string time = format_duration_ns(static_cast<std::int64_t>(timeout_s * 1e9));
    const auto resizes_too_long = [&](const JobRecord& job) {
        // A task that is to go may take its grace.
        const double resized_within_s = timeout_s + job.asked.grace_s;
        return job.is_resizing && now_s - std::max(since_s, job.resize_s) >= resized_within_s;
    };
    const auto starts_too_long = [&](const JobRecord& job) {
        return job.phase == Phase::starting && now_s - std::max(since_s, job.state.started_s) >= timeout_s;
    };
    const auto is_late = [&](const JobRecord& job) { return resizes_too_long(job) || starts_too_long(job); };
    for (const JobId id : holders_.ids_if(is_late)) {
        JobRecord& job = jobs_.at(id);
        if (resizes_too_long(job)) give_up_resize(job, "was not resized within " + time + " and its grace", now_s);
        if (!starts_too_long(job)) continue;
        changed_.insert(id);
        add_log(job, now_s, "did not begin within " + time + (job.pending_for.empty() ? "" : ": " + job.pending_for));
        release(job, now_s);
        stop(job, StopCause::start_timeout);
    }
}

void JobQueue::handle_end(JobRecord& job, const EngineEvent& event, double now_s) {
    job.exit_code = event.exit_code;
    job.exit_signal = event.exit_signal;
    job.lost = 0;
    if (is_stop_from_outside(job, event)) return handle_stop_from_outside(job, event, now_s);
    if (job.phase == Phase::stopping && event.was_stopping) return finish_stop(job, now_s);
    release(job, now_s);
    const bool good = event.exit_code == 0;
    end(job, good ? Phase::succeeded : Phase::failed, how_it_ended(event), now_s);
}

void JobQueue::finish_stop(JobRecord& job, double now_s) {
    const StopCause cause = std::exchange(job.stop_cause, StopCause::none);
    if (cause == StopCause::cancelled) return end(job, Phase::cancelled, job.end_reason, now_s);
    if (cause == StopCause::start_timeout) return requeue_later(job, now_s);
    if (cause == StopCause::node_removed) return requeue(job, now_s);
    ++job.state.preemptions;
    ++counts_.preemptions;
    if (cause == StopCause::moved) {
        set_phase(job, Phase::placed);
        job.last = std::exchange(job.held, std::exchange(job.next, std::nullopt));
        return;
    }
    requeue(job, now_s);
}

// Such an end says nothing about the job, so it does not count among the losses after which a job fails.
void JobQueue::handle_stop_from_outside(JobRecord& job, const EngineEvent& event, double now_s) {
    ++counts_.lost;
    const std::string by = event.stopped_by.empty() ? "" : " by " + event.stopped_by;
    add_log(job, now_s, "stopped from outside" + by + ": " + how_it_ended(event));
    release(job, now_s);
    requeue(job, now_s);
}

void JobQueue::handle_rejection(JobRecord& job, const EngineEvent& event, double now_s) {
    // A cluster manager that takes back what it has begun evicts it.
    if (job.phase == Phase::running) return handle_eviction(job, event, now_s);
    const std::string why = "rejected by the cluster manager: " + event.message;
    add_log(job, now_s, why);
    if (job.phase == Phase::stopping) return finish_stop(job, now_s);
    release(job, now_s);
    if (event.for_good) {
        ++counts_.rejections;
        return end(job, Phase::failed, why, now_s);
    }
    job.pending_for = event.message;
    requeue_later(job, now_s);
    hold_back(event.also_rejected, job);
}

void JobQueue::hold_back(std::span<const std::string> names, const JobRecord& rejected) {
    for (const std::string& name : names) {
        const auto named = by_name_.find(name);
        JobRecord* const job = named == by_name_.end() ? nullptr : active_.find(named->second);
        if (job == nullptr || job == &rejected || job->phase != Phase::waiting) continue;
        job->held_back_until_s = rejected.not_before_s;
        job->pending_for = rejected.pending_for;
        held_back_.insert(job->id);
    }
}

void JobQueue::release_held_back(const std::string& tenant) {
    std::erase_if(held_back_, [&](JobId id) {
        JobRecord* const job = active_.find(id);
        if (job == nullptr) return true;
        if (job->asked.tenant != tenant) return false;
        job->held_back_until_s = 0;
        return true;
    });
}

void JobQueue::handle_eviction(JobRecord& job, const EngineEvent& event, double now_s) {
    ++counts_.evictions;
    add_log(job, now_s, "evicted by the cluster manager: " + event.message);
    if (job.phase == Phase::stopping) return finish_stop(job, now_s);
    release(job, now_s);
    requeue(job, now_s);
}

double JobQueue::retry_delay_s(std::uint32_t times) {
    return std::min(kRetryMost_s, std::ldexp(kRetryFirst_s, static_cast<int>(std::min(times, 16u))));
}

void JobQueue::requeue_later(JobRecord& job, double now_s) {
    ++counts_.rejections;
    job.not_before_s = now_s + retry_delay_s(job.rejected++);
    const std::string pending_for = job.pending_for;
    requeue(job, now_s);
    job.pending_for = pending_for;
}

void JobQueue::handle_loss(JobRecord& job, const EngineEvent& event, double now_s) {
    if (is_stop_from_outside(job, event)) return handle_stop_from_outside(job, event, now_s);
    const bool cause_is_known = job.stop_cause == StopCause::start_timeout || job.stop_cause == StopCause::node_removed;
    if (cause_is_known) return finish_stop(job, now_s);
    ++counts_.lost;
    const bool got_on = job.phase == Phase::running && now_s - job.state.started_s >= kProgressAtLeast_s;
    job.lost = got_on ? 1 : job.lost + 1;
    add_log(job, now_s, "lost: " + event.message);
    const StopCause cause = std::exchange(job.stop_cause, StopCause::none);
    release(job, now_s);
    if (cause == StopCause::cancelled) return end(job, Phase::cancelled, job.end_reason, now_s);
    if (job.lost >= kLostMax) {
        return end(job, Phase::failed, "lost " + std::to_string(job.lost) + " times in a row: " + event.message, now_s);
    }
    requeue(job, now_s);
}

void JobQueue::release(const JobRecord& job, double now_s) {
    const Allotment* const released = job.placed();
    if (released == nullptr || released->packed_with) return;
    const std::vector<HeldCell> cells = placer_.cells_of(job.id);
    placer_.release(job.id);
    hand_to_guests(job.id, cells, now_s);
}

void JobQueue::hand_to_guests(JobId host, std::span<const HeldCell> cells, double now_s) {
    const auto is_guest = [](const std::optional<Allotment>& allotment) { return allotment && allotment->packed_with; };
    std::erase_if(guests_, [&](JobId id) {
        return !active_.contains(id) || (!is_guest(jobs_.at(id).held) && !is_guest(jobs_.at(id).next));
    });
    for (const JobId id : guests_) {
        JobRecord& guest = jobs_.at(id);
        if (!guest.held || guest.held->packed_with != host) continue;
        const PlaceRequest request = request_for(guest, *guest.held, cells, is_with_engine(guest.phase));
        changed_.insert(id);
        const bool is_leaving = guest.phase == Phase::stopping && !guest.next;
        guest.held->packed_with.reset();
        if (is_leaving || placer_.place_at(request, placement_of(*guest.held))) continue;
        preempt(guest, "the job that shared its GPUs has left them, and it may not keep them alone", now_s);
    }
}

void JobQueue::requeue(JobRecord& job, double now_s) {
    if (is_with_engine(job.phase) && job.held) job.last = job.held;
    set_phase(job, Phase::waiting);
    job.held.reset();
    job.next.reset();
    job.is_resizing = false;
    job.may_lack_nodes = false;
    job.state.waiting_since_s = now_s;
    job.state.lease_until_s = 0;
    job.waits_for = WaitsFor::turn;
    job.pending_for.clear();
    add_log(job, now_s, "waits again");
    notes_.push_back({QueueNote::Kind::stopped, job.asked.name, "job " + title(job) + " is stopped, and waits again"});
}

// Ends the job. `job` may be invalid afterwards, as the history may have dropped it.
void JobQueue::end(JobRecord& job, Phase outcome, const std::string& why, double now_s) {
    end_with_dependents(job, outcome, why, now_s);
    trim_history();
}

void JobQueue::end_with_dependents(JobRecord& job, Phase outcome, const std::string& why, double now_s) {
    set_phase(job, outcome);
    job.stop_cause = StopCause::none;
    job.held.reset();
    job.next.reset();
    job.is_resizing = false;
    job.may_lack_nodes = false;
    job.pending_for.clear();
    job.ended_s = now_s;
    job.end_reason = why;
    add_log(job, now_s, std::string(name(outcome)) + ": " + why);
    notes_.push_back(
        {QueueNote::Kind::ended, job.asked.name, "job " + title(job) + " " + std::string(past(outcome)) + ": " + why});
    ++counts_.ended[outcome];
    changed_.insert(job.id);
    active_.erase(job.id);
    count_active(job.asked, false);
    history_.emplace(now_s, job.id);
    history_bytes_ += record_bytes(job.asked);
    tell_dependents(job, now_s);
}

JobRecord* JobQueue::find_record(JobId id) {
    if (JobRecord* const found = active_.find(id)) return found;
    const auto at = jobs_.find(id);
    return at == jobs_.end() ? nullptr : &at->second;
}

void JobQueue::trim_history() {
    while (history_.size() > history_max_ || (history_bytes_ > bytes_max_ && history_.size() > 1)) {
        const JobId oldest = history_.begin()->second;
        history_.erase(history_.begin());
        const auto at = jobs_.find(oldest);
        const auto named = by_name_.find(at->second.asked.name);
        if (named != by_name_.end() && named->second == oldest) by_name_.erase(named);
        history_bytes_ -= record_bytes(at->second.asked);
        jobs_.erase(at);
        changed_.insert(oldest);
    }
}

void JobQueue::tell_dependents(const JobRecord& job, double now_s) {
    std::erase_if(dependents_, [&](JobId id) { return !active_.contains(id) || jobs_.at(id).after.empty(); });
    std::vector<JobId> dependents;
    for (const JobId id : dependents_) {
        if (new_.contains(id)) continue;
        if (std::ranges::find(jobs_.at(id).after, job.id) != jobs_.at(id).after.end()) dependents.push_back(id);
    }
    const bool good = job.phase == Phase::succeeded;
    const std::string why =
        "job " + title(job) + ", which it waits for, " + std::string(past(job.phase)) + ": " + job.end_reason;
    for (const JobId id : dependents) {
        const auto at = jobs_.find(id);
        if (at == jobs_.end() || has_ended(at->second.phase)) continue;
        changed_.insert(id);
        std::erase(at->second.after, job.id);
        if (!good) end_with_dependents(at->second, Phase::cancelled, why, now_s);
    }
}

}  // namespace larder::scheduler
