// The part of JobQueue that applies decisions and resumes after a restart.

#include <algorithm>
#include <bit>
#include <unordered_set>
#include <utility>

#include "scheduler/live/queue.h"

namespace larder::scheduler {

std::uint32_t JobQueue::type_index(const std::string& gpu_type) const {
    const auto at = std::ranges::find(cluster_.gpu_types, gpu_type);
    return at == cluster_.gpu_types.end() ? kNoGpuType : static_cast<std::uint32_t>(at - cluster_.gpu_types.begin());
}

std::span<const std::uint32_t> JobQueue::nodes_named(std::string_view name) const {
    const auto at = nodes_by_name_.find(name);
    return at == nodes_by_name_.end() ? std::span<const std::uint32_t>() : at->second;
}

Placement JobQueue::placement_of(const Allotment& held) const {
    Placement placement;
    add_placement_of(held, placement);
    return placement;
}

void JobQueue::add_placement_of(const Allotment& held, Placement& placement) const {
    for (const NamedGpus& share : held.gpus) {
        const auto nodes = nodes_named(share.node);
        const auto index = std::ranges::find_if(
            nodes, [&](std::uint32_t n) { return cluster_.gpu_types[cluster_.nodes[n].gpu_type] == held.gpu_type; });
        if (index == nodes.end()) return placement.clear();
        const GpuNode& node = cluster_.nodes[*index];
        const std::uint64_t all =
            (node.gpus == kGpusPerNodeMax ? ~std::uint64_t{0} : (std::uint64_t{1} << node.gpus) - 1) << node.first_gpu;
        if ((share.gpus & ~all) != 0 && !cluster_.is_open) return placement.clear();
        placement.push_back({.node = *index, .gpus = share.gpus >> node.first_gpu});
    }
}

std::vector<HeldCell> JobQueue::cells_of(const Allotment& held) const {
    std::vector<HeldCell> cells;
    cells.reserve(held.cells.size());
    for (const NamedCell& cell : held.cells) {
        for (const std::uint32_t n : nodes_named(cell.node)) {
            const std::uint32_t first = cluster_.nodes[n].first_gpu;
            if (cell.gpu < first || cell.gpu - first >= cluster_.nodes[n].gpus) continue;
            cells.push_back({.node = n, .gpu = cell.gpu - first, .level = cell.level});
        }
    }
    return cells;
}

PlaceRequest JobQueue::request_for(const JobRecord& job, const Allotment& held, std::span<const HeldCell> cells,
                                   bool runs_there) const {
    return {.job = job.id,
            .tenant = job.spec.tenant,
            .gpus = held.count,
            .gpu_type = type_index(held.gpu_type),
            .priority = job.asked.priority,
            .opportunistic = held.opportunistic,
            .near = {},
            .cells = cells,
            .runs_there = runs_there};
}

void JobQueue::limit_types(JobRecord& job) const {
    if (job.spec.shape.is_free()) return;
    std::vector<bool>& types = job.types_for_shape;
    for (std::uint32_t type = static_cast<std::uint32_t>(types.size()); type < cluster_.gpu_types.size(); ++type) {
        const auto checked = placer_.check({.job = job.id,
                                            .tenant = job.spec.tenant,
                                            .gpus = job.asked.least_gpus(),
                                            .gpu_type = type,
                                            .opportunistic = job.spec.opportunistic,
                                            .near = {},
                                            .shape = &job.spec.shape});
        types.push_back(checked.has_value());
    }
    if (std::ranges::find(types, true) == types.end()) return;  // the file of cells has changed: it waits for a place
    for (std::uint32_t type = 0; type < types.size(); ++type) {
        const bool runs_there = job.placed() != nullptr && type_index(job.placed()->gpu_type) == type;
        if (!types[type] && !runs_there) job.spec.ideal_bytes_per_second[type] = 0;
    }
}

void JobQueue::forget_places_for_shapes() {
    for (JobRecord* const job : active_.records()) job->types_for_shape.clear();
}

std::set<std::string, std::less<>> JobQueue::nodes_in_use() const {
    std::set<std::string, std::less<>> names;
    for (const JobRecord* const job : holders_.records()) {
        for (const std::optional<Allotment>* const on : {&job->held, &job->next}) {
            if (!*on) continue;
            for (const NamedGpus& share : (*on)->gpus) names.insert(share.node);
        }
    }
    return names;
}

void JobQueue::note_cells() {
    for (JobRecord* const holder : holders_.records()) {
        JobRecord& job = *holder;
        if (job.placed() == nullptr || job.placed()->packed_with) continue;
        std::vector<NamedCell> cells;
        for (HeldCell& cell : placer_.cells_of(job.id)) {
            const GpuNode& node = cluster_.nodes[cell.node];
            cells.push_back({.node = node.name, .gpu = node.first_gpu + cell.gpu, .level = std::move(cell.level)});
        }
        Allotment& placed = job.next ? *job.next : *job.held;
        if (cells == placed.cells) continue;
        placed.cells = std::move(cells);
        changed_.insert(job.id);
    }
}

Allotment JobQueue::allotment_of(const Start& start, std::span<const JobId> ids) const {
    Allotment held{
        .count = start.gpus, .gpu_type = cluster_.gpu_types[start.gpu_type], .opportunistic = start.opportunistic};
    for (const NodeGpus& share : start.placement) {
        const GpuNode& node = cluster_.nodes[share.node];
        held.gpus.push_back({.node = node.name, .gpus = share.gpus << node.first_gpu});
    }
    if (start.packed_with) held.packed_with = ids[*start.packed_with];
    return held;
}

std::vector<JobRecord*> JobQueue::schedulable(double now_s) {
    std::vector<JobRecord*> jobs;
    jobs.reserve(active_.size());
    for (JobRecord* const job : active_.records()) {
        const bool is_leaving = job->phase == Phase::stopping && !job->next;
        const bool is_rejected =
            job->phase == Phase::waiting && std::max(job->not_before_s, job->held_back_until_s) > now_s;
        if (!is_leaving && !is_rejected && job->after.empty() && !new_.contains(job->id)) jobs.push_back(job);
    }
    return jobs;
}

double JobQueue::next_retry_s(double now_s) const {
    double next_s = kNever;
    for (const JobRecord* const job : active_.records()) {
        const double placed_s = std::max(job->not_before_s, job->held_back_until_s);
        if (job->phase == Phase::waiting && placed_s > now_s) next_s = std::min(next_s, placed_s);
        if (job->phase == Phase::running && job->grow_not_before_s > now_s) {
            next_s = std::min(next_s, job->grow_not_before_s);
        }
    }
    return next_s;
}

void JobQueue::apply(const Actions& actions, std::span<const JobId> ids, std::string_view by, double now_s) {
    const std::unordered_set<std::uint32_t> stops(actions.stops.begin(), actions.stops.end());
    std::unordered_set<std::uint32_t> moved;
    for (const Start& start : actions.starts) {
        if (stops.contains(start.job)) moved.insert(start.job);
    }
    const std::string reason = "policy " + std::string(by) + " puts other jobs first";
    for (const std::uint32_t stopped : actions.stops) {
        if (!moved.contains(stopped)) preempt(jobs_.at(ids[stopped]), reason, now_s);
    }
    for (const Start& start : actions.starts) {
        place(jobs_.at(ids[start.job]), allotment_of(start, ids), moved.contains(start.job), now_s);
    }
    // Each round renews the leases of all jobs that go on. That alone is not put on record: restore_leases().
    for (const auto& [index, until_s] : actions.leases) jobs_.at(ids[index]).state.lease_until_s = until_s;
    for (const std::uint32_t index : actions.admitted) {
        JobRecord& job = jobs_.at(ids[index]);
        if (job.state.admitted_s == kNever) add_log(job, now_s, "its deadline is promised");
        job.state.admitted_s = now_s;
        changed_.insert(job.id);
    }
    for (const Promised& one : actions.promised) {
        JobRecord& job = jobs_.at(ids[one.job]);
        if (job.state.promised == one.times) continue;
        job.state.promised = one.times;
        changed_.insert(job.id);
    }
    // A strict job without a promise fails once its deadline has passed: a late result is worthless.
    for (const Refused& refused : actions.refused) {
        const auto at = jobs_.find(ids[refused.job]);
        if (at == jobs_.end() || at->second.phase != Phase::waiting) continue;
        if (at->second.asked.deadline_s.value_or(kNever) > now_s) continue;
        end(at->second, Phase::failed, "its deadline passed before it could run", now_s);
    }
    const auto set_claim = [&](std::uint32_t index, bool opportunistic, std::string_view text) {
        JobRecord& job = jobs_.at(ids[index]);
        if (!job.held) return;
        set_opportunistic(job, opportunistic);
        add_log(job, now_s, std::string(text));
        changed_.insert(job.id);
    };
    for (const std::uint32_t index : actions.demoted)
        set_claim(index, true, "loses its claim, and keeps running for now");
    for (const std::uint32_t index : actions.promoted) set_claim(index, false, "gets its claim back");
}

void JobQueue::set_phase(JobRecord& job, Phase phase) {
    if (is_with_engine(job.phase) && !is_with_engine(phase)) {
        left_engine_.push_back(job.id);
        if (job.phase != Phase::starting) release_held_back(job.asked.tenant);
    }
    job.phase = phase;
    if (phase == Phase::waiting || has_ended(phase)) {
        holders_.erase(job.id);
    } else {
        holders_.insert(job);
    }
}

// An attempt that is resized holds what it leaves by the same right as what it keeps.
void JobQueue::set_opportunistic(JobRecord& job, bool opportunistic) {
    if (job.next) job.next->opportunistic = opportunistic;
    if (!job.next || job.phase == Phase::running) job.held->opportunistic = opportunistic;
}

void JobQueue::preempt(JobRecord& job, std::string_view reason, double now_s) {
    changed_.insert(job.id);
    if (job.phase == Phase::placed) {
        set_phase(job, Phase::waiting);
        job.held.reset();
        job.state.waiting_since_s = now_s;
        add_log(job, now_s, "gives up its place before it began: " + std::string(reason));
        return;
    }
    add_log(job, now_s,
            job.held && job.held->opportunistic ? "preempted: it has no claim to its GPUs, and others need them"
                                                : "preempted: " + std::string(reason));
    stop(job, StopCause::preempted);
}

void JobQueue::stop(JobRecord& job, StopCause cause) {
    if (job.is_resizing) job.held = Allotment(job.in_use());
    job.is_resizing = false;
    job.may_lack_nodes = false;
    set_phase(job, Phase::stopping);
    if (job.stop_cause != StopCause::cancelled) job.stop_cause = cause;
    if (cause != StopCause::moved) job.next.reset();
}

void JobQueue::place(JobRecord& job, Allotment held, bool moved, double now_s) {
    changed_.insert(job.id);
    job.waits_for = WaitsFor::nothing;
    if (held.packed_with) guests_.insert(job.id);
    if (moved && job.spec.resizable && resize(job, held, now_s)) return;
    job.state.started_s = now_s;
    if (moved && is_with_engine(job.phase)) {
        add_log(job, now_s, "moves to " + text_of(held));
        stop(job, StopCause::moved);
        job.next = std::move(held);
        return;
    }
    set_phase(job, Phase::placed);
    add_log(job, now_s, "gets " + text_of(held));
    job.held = std::move(held);
}

void JobQueue::set_waits_for(JobId id, WaitsFor why, const std::string& text, double now_s) {
    JobRecord& job = this->job(id);
    if (job.waits_for == why) return;
    job.waits_for = why;
    if (why == WaitsFor::nothing) return;
    add_log(job, now_s, text);
    changed_.insert(id);
}

JobQueue::LeavingGpus JobQueue::leaving_gpus() const {
    LeavingGpus leaving;
    for (const JobRecord* const job : holders_.records()) {
        if (job->phase == Phase::running && job->next) {
            for (const NamedGpus& share : job->held->gpus) {
                const bool stays = std::ranges::find(job->next->gpus, share) != job->next->gpus.end();
                if (!stays) leaving[share.node] |= share.gpus;
            }
        }
        if (job->phase != Phase::stopping) continue;
        for (const NamedGpus& share : job->held->gpus) leaving[share.node] |= share.gpus;
    }
    return leaving;
}

JobQueue::UsedGpus JobQueue::used_gpus() const {
    UsedGpus used;
    for (const JobRecord* const job : holders_.records()) {
        if (!is_with_engine(job->phase) || job->held->packed_with) continue;
        for (const NamedGpus& share : job->in_use().gpus)
            used[share.node] += static_cast<std::uint32_t>(std::popcount(share.gpus));
    }
    return used;
}

void JobQueue::begin_starts(double now_s) {
    const auto waits_for_gpus = [](const JobRecord& job) {
        return job.phase == Phase::placed || (job.phase == Phase::running && job.next && !job.is_resizing);
    };
    std::vector<JobRecord*> waiting;
    for (JobRecord* const job : holders_.records()) {
        if (waits_for_gpus(*job)) waiting.push_back(job);
    }
    if (waiting.empty()) return;
    const LeavingGpus leaving = leaving_gpus();
    // The GPUs of an open cluster are counted only: those of a stopping job may have other numbers than those that it
    // keeps from the next job.
    UsedGpus used = cluster_.is_open ? used_gpus() : UsedGpus();
    const auto gpus_of = [&](std::string_view name) {
        std::uint32_t gpus = 0;
        for (const std::uint32_t n : nodes_named(name)) gpus += cluster_.nodes[n].gpus;
        return gpus;
    };
    const auto is_clear = [&](const NamedGpus& share) {
        const auto found = leaving.find(share.node);
        return found == leaving.end() || (found->second & share.gpus) == 0;
    };
    const auto has_room = [&](const NamedGpus& share) {
        return used[share.node] + static_cast<std::uint32_t>(std::popcount(share.gpus)) <= gpus_of(share.node);
    };
    for (JobRecord* const waits : waiting) {
        JobRecord& job = *waits;
        const bool is_resize = job.phase == Phase::running;
        const std::vector<NamedGpus> added = is_resize ? only_in(*job.next, *job.held) : job.held->gpus;
        if (!std::ranges::all_of(added, is_clear)) continue;
        if (cluster_.is_open && !job.held->packed_with) {
            if (!std::ranges::all_of(added, has_room)) continue;
            for (const NamedGpus& share : added)
                used[share.node] += static_cast<std::uint32_t>(std::popcount(share.gpus));
        }
        if (is_resize) {
            begin_resize(job, now_s);
            continue;
        }
        set_phase(job, Phase::starting);
        ++job.attempt;
        ++counts_.starts;
        job.state.started_s = now_s;
        job.pending_for.clear();
        job.devices.clear();
        job.resizes = 0;
        job.may_lack_nodes = false;
        job.exit_code.reset();
        job.exit_signal.reset();
        if (job.state.first_started_s == kNever) {
            job.state.first_started_s = now_s;
            counts_.waits_s.push_back(std::max(0.0, now_s - job.submitted_s));
        }
        changed_.insert(job.id);
    }
}

// --- resizes of running attempts

bool JobQueue::resize(JobRecord& job, Allotment to, double now_s) {
    if (job.phase != Phase::running || !can_resize(job.in_use(), to)) return false;
    // Tasks that stay keep their ranks.
    const Allotment from = job.in_use();
    std::vector<NamedGpus> ranks;
    for (const NamedGpus& share : from.gpus) {
        if (std::ranges::find(to.gpus, share) != to.gpus.end()) ranks.push_back(share);
    }
    const std::vector<NamedGpus> added = only_in(to, from);
    ranks.insert(ranks.end(), added.begin(), added.end());
    to.gpus = std::move(ranks);
    changed_.insert(job.id);
    if (job.is_resizing) supersede_resize(job);
    const bool is_as_before = !job.may_lack_nodes && to.gpus == job.held->gpus;
    const std::string_view how = to.count > job.held->count   ? "grows to "
                                 : to.count < job.held->count ? "shrinks to "
                                                              : "keeps ";
    add_log(job, now_s, std::string(how) + text_of(to) + ", without a restart");
    if (is_as_before) {
        job.next.reset();
        job.held = std::move(to);
    } else {
        job.next = std::move(to);
    }
    return true;
}

// The answer to the resize under way no longer counts.
void JobQueue::supersede_resize(JobRecord& job) {
    job.held = Allotment(job.in_use());
    job.is_resizing = false;
    job.may_lack_nodes = true;
}

void JobQueue::take_back_growth(JobRecord& job, double now_s) {
    const Allotment before = *job.held;
    const std::vector<HeldCell> cells = cells_of(before);
    const std::vector<HeldCell> grown_cells = placer_.cells_of(job.id);
    placer_.release(job.id);
    const PlaceRequest request = request_for(job, before, cells, true);
    const Placement placement = placement_of(before);
    if (placement.empty() || !placer_.place_at(request, placement)) {
        hand_to_guests(job.id, grown_cells, now_s);
        return stop(job, StopCause::preempted);
    }
    stop_guests_outside(job.id, before, now_s);
    if (job.is_resizing) supersede_resize(job);
    job.next.reset();
    if (job.may_lack_nodes) job.next = before;
}

void JobQueue::stop_guests_outside(JobId host, const Allotment& kept, double now_s) {
    for (const JobId id : guests_) {
        const auto at = jobs_.find(id);
        if (at == jobs_.end() || !active_.contains(id)) continue;
        JobRecord& guest = at->second;
        const std::optional<Allotment>& on = guest.next ? guest.next : guest.held;
        const bool is_leaving = guest.phase == Phase::stopping && !guest.next;
        if (is_leaving || !on || on->packed_with != host || includes(kept, *on)) continue;
        preempt(guest, "the job that shares its GPUs does not get all of them", now_s);
    }
}

void JobQueue::begin_resize(JobRecord& job, double now_s) {
    job.is_resizing = true;
    job.resize_s = now_s;
    ++job.resizes;
    changed_.insert(job.id);
}

void JobQueue::finish_resize(JobRecord& job, const EngineEvent& event, double now_s) {
    if (job.phase != Phase::running || !job.is_resizing || event.resize != job.resizes) return;
    if (job.next->count > job.held->count) job.refused_growths = 0;
    job.held = std::exchange(job.next, std::nullopt);
    job.is_resizing = false;
    job.may_lack_nodes = false;
    if (!event.devices.empty()) job.devices = event.devices;
    std::erase_if(job.devices, [&](const GrantedDevices& granted) {
        return std::ranges::find(job.held->gpus, granted.node, &NamedGpus::node) == job.held->gpus.end();
    });
    ++counts_.resizes;
    add_log(job, now_s, "goes on with " + text_of(*job.held));
    notes_.push_back(
        {QueueNote::Kind::started, job.asked.name, "job " + title(job) + " goes on with " + text_of(*job.held)});
}

void JobQueue::give_up_resize(JobRecord& job, const std::string& why, double now_s) {
    const bool grows = job.next->count > job.held->count;
    if (!grows) return restart_instead(job, why, now_s);
    changed_.insert(job.id);
    job.grow_not_before_s = now_s + retry_delay_s(job.refused_growths++);
    add_log(job, now_s, why + ": it goes on with " + text_of(*job.held));
    take_back_growth(job, now_s);
}

void JobQueue::restart_instead(JobRecord& job, const std::string& why, double now_s) {
    changed_.insert(job.id);
    add_log(job, now_s, why + ": it is stopped, and starts again");
    if (!job.next) job.next = job.held;
    stop(job, StopCause::moved);
}

// --- after a restart

void JobQueue::restore(JobRecord record) {
    last_id_ = std::max(last_id_, record.id);
    by_name_[record.asked.name] = record.id;
    if (has_ended(record.phase)) {
        history_.emplace(record.ended_s, record.id);
        history_bytes_ += record_bytes(record.asked);
    } else {
        if (!record.after.empty()) dependents_.insert(record.id);
        const auto is_guest = [](const std::optional<Allotment>& allotment) {
            return allotment && allotment->packed_with;
        };
        if (is_guest(record.held) || is_guest(record.next)) guests_.insert(record.id);
        count_active(record.asked, true);
    }
    const JobId id = record.id;
    JobRecord& job = jobs_.insert_or_assign(id, std::move(record)).first->second;
    if (has_ended(job.phase)) return;
    active_.insert(job);
    if (job.phase != Phase::waiting) holders_.insert(job);
}

void JobQueue::restore_leases() {
    double last_s = 0;
    for (const JobRecord* const job : holders_.records()) last_s = std::max(last_s, job->state.lease_until_s);
    for (JobRecord* const job : holders_.records()) {
        if (job->state.lease_until_s > 0) job->state.lease_until_s = last_s;
    }
}

void JobQueue::place_restored(double now_s) {
    restore_leases();
    for (const JobId id : std::vector(active_.ids())) check_dependencies(id, now_s);
    std::vector<JobRecord*> hosts;
    std::vector<JobRecord*> guests;
    for (JobRecord* const restored : active_.records()) {
        JobRecord& job = *restored;
        // The clock of the process that wrote this may have been ahead.
        job.not_before_s = std::min(job.not_before_s, now_s + kRetryMost_s);
        job.grow_not_before_s = std::min(job.grow_not_before_s, now_s + kRetryMost_s);
        const Allotment* const held = job.placed();
        if (held != nullptr) (held->packed_with ? guests : hosts).push_back(&job);
    }
    // Jobs that run come before jobs that have not begun. Rows of older daemons name no cells, so their jobs are placed
    // last.
    const auto runs_there = [](const JobRecord& job) {
        return is_with_engine(job.phase) && job.phase != Phase::stopping;
    };
    std::ranges::stable_partition(hosts, [&](const JobRecord* job) { return runs_there(*job); });
    std::ranges::stable_partition(hosts, [](const JobRecord* job) { return !job->placed()->cells.empty(); });
    const auto give_up = [&](JobRecord& job) {
        changed_.insert(job.id);
        if (job.phase == Phase::placed) {
            requeue(job, now_s);
        } else {
            add_log(job, now_s, "its GPUs are gone, or belong to other jobs: it is stopped");
            stop(job, StopCause::preempted);
        }
    };
    std::set<JobId> placed;
    const auto place = [&](JobRecord& job, bool opportunistic) {
        const Allotment& held = *job.placed();
        const std::vector<HeldCell> cells = cells_of(held);
        const Placement placement = placement_of(held);
        PlaceRequest request = request_for(job, held, cells, runs_there(job));
        request.opportunistic = opportunistic;
        if (placement.empty() || !placer_.place_at(request, placement)) return false;
        placed.insert(job.id);
        return true;
    };
    std::vector<JobRecord*> without_cells;
    for (JobRecord* job : hosts) {
        if (!place(*job, job->placed()->opportunistic)) without_cells.push_back(job);
    }
    // The file of cells has changed: a job whose cells have another owner runs on until that owner needs them.
    for (JobRecord* job : without_cells) {
        if (job->phase == Phase::placed || !place(*job, true)) {
            give_up(*job);
            continue;
        }
        set_opportunistic(*job, true);
        add_log(*job, now_s, "loses its claim, as its cells are no longer its tenant's, and keeps running for now");
        changed_.insert(job->id);
    }
    for (JobRecord* job : guests) {
        const Allotment& held = *job->placed();
        if (!placed.contains(*held.packed_with)) give_up(*job);
    }
}

}  // namespace larder::scheduler
