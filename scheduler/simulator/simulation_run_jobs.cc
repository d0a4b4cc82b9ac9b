#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "scheduler/simulator/simulation_run.h"

namespace larder::scheduler {
namespace {

// True if a resizable job needs no restart for the GPUs that it starts with.
bool goes_on(const JobState& job, const Start& start) {
    const auto includes = [](const Placement& all, const Placement& some) {
        return std::ranges::all_of(some,
                                   [&](const NodeGpus& share) { return std::ranges::find(all, share) != all.end(); });
    };
    if (job.packed_with != nullptr || start.packed_with || job.gpu_type != start.gpu_type) return false;
    const bool keeps_first = std::ranges::find(start.placement, job.placement.front()) != start.placement.end();
    return keeps_first && (includes(start.placement, job.placement) || includes(job.placement, start.placement));
}

}  // namespace

void SimulationRun::arrive(std::uint32_t j) {
    const JobSpec& spec = *jobs_[j].state.spec;
    bool fits = false;
    bool fits_cluster = false;
    for (std::uint32_t type = 0; type < gpu_types_.size(); ++type) {
        const std::uint32_t gpus =
            spec.opportunistic ? total_gpus(type) : std::min(total_gpus(type), placer_.owned_gpus(spec.tenant, type));
        if (!may_run_on(spec, type)) continue;
        fits = fits || gpus >= spec.gpus_min;
        fits_cluster = fits_cluster || total_gpus(type) >= spec.gpus_min;
    }
    if (!fits) {
        outcome_.jobs[j].end = JobEnd::rejected;
        outcome_.jobs[j].larger_than_cluster = !fits_cluster;
        ++done_;
        return;
    }
    jobs_[j].state.waiting_since_s = now_s_;
    enter(j);
}

std::uint32_t SimulationRun::total_gpus(std::uint32_t type) const {
    return gpu_types_[type].gpus + failures_.lost_gpus(cluster_, type);
}

void SimulationRun::enter(std::uint32_t j) {
    const auto before = std::ranges::lower_bound(ids_, JobId(j));
    live_.insert(live_.begin() + (before - ids_.begin()), &jobs_[j].state);
    ids_.insert(before, j);
    jobs_[j].live = true;
    shares_.change_demand(jobs_[j].state.spec->tenant, jobs_[j].state.spec->gpus);
    decide_due_ = true;
}

void SimulationRun::leave(std::uint32_t j) {
    const auto found = std::ranges::lower_bound(ids_, JobId(j));
    live_.erase(live_.begin() + (found - ids_.begin()));
    ids_.erase(found);
    jobs_[j].live = false;
    shares_.change_demand(jobs_[j].state.spec->tenant, -static_cast<double>(jobs_[j].state.spec->gpus));
    decide_due_ = true;
}

void SimulationRun::finish(SimulatedJob& job) {
    const std::uint32_t j = index(job);
    job.reader.remaining_bytes = 0;
    if (job.state.packed_with == nullptr) {
        placer_.release(j);
        leave_gpus_to_guests(job);
    }
    const std::uint32_t dataset = job.state.spec->dataset;
    stop_running(job, dataset != kNoDataset && --users_left_[dataset] == 0);
    leave(j);
    outcome_.jobs[j].end = JobEnd::finished;
    outcome_.jobs[j].finish_s = now_s_;
    outcome_.jobs[j].ran_s = job.state.ran_s;
    ++done_;
}

void SimulationRun::leave_gpus_to_guests(const SimulatedJob& host) {
    if (host.guests == 0) return;
    for (const auto& [j, host_index] : std::vector(packed_on_.begin(), packed_on_.end())) {
        if (host_index != index(host)) continue;
        SimulatedJob& guest = jobs_[j];
        const PlaceRequest request{.job = j,
                                   .tenant = guest.state.spec->tenant,
                                   .gpus = guest.state.gpus,
                                   .gpu_type = guest.state.gpu_type,
                                   .priority = guest.state.spec->priority,
                                   .opportunistic = guest.state.opportunistic,
                                   .near = {}};
        if (placer_.place_at(request, guest.state.placement)) {
            unpack(guest);
        } else {
            preempt(j);
        }
    }
}

void SimulationRun::expire(std::uint32_t j) {
    if (!jobs_[j].live || jobs_[j].state.running) return;
    leave(j);
    data_->forget(jobs_[j]);
    const std::uint32_t dataset = jobs_[j].state.spec->dataset;
    if (dataset != kNoDataset) --users_left_[dataset];
    outcome_.jobs[j].end = JobEnd::expired;
    ++done_;
}

void SimulationRun::stop_running(SimulatedJob& job, bool dataset_is_done) {
    account(job);
    data_->stop(job, dataset_is_done, now_s_);
    checkpoints_.note_stop(index(job));
    unpack(job);
    job.state.running = false;
    job.state.remaining_bytes = job.reader.remaining_bytes;
    job.state.unread_bytes = job.reader.unread_bytes;
    job.last_placement = std::move(job.state.placement);
    job.last_gpus = job.state.gpus;
    job.state.placement.clear();
    job.state.rate_bytes_per_second = 0;
    job.state.waiting_since_s = now_s_;
    job.state.lease_until_s = 0;
    job.paused = false;
    const auto at = std::ranges::find(running_, &job);
    LARDER_ASSERT(at != running_.end());
    *at = running_.back();
    running_.pop_back();
    plan_due_ = true;
}

void SimulationRun::unpack(SimulatedJob& job) {
    job.shared_part = 1;
    if (job.state.packed_with != nullptr) {
        SimulatedJob& host = jobs_[packed_on_[index(job)]];
        if (--host.guests == 0) host.shared_part = 1;
    }
    job.state.packed_with = nullptr;
    packed_on_.erase(index(job));
    if (job.guests == 0) return;
    // The host stops, so the guest has no GPUs and waits for the next decision. Schedule that decision soon: within a
    // decision, `decide_due_` would take effect only at the next event.
    for (const auto& [guest, host] : std::vector(packed_on_.begin(), packed_on_.end())) {
        if (host != index(job)) continue;
        stop_running(jobs_[guest]);
        decide_again_s_ = std::min(decide_again_s_, now_s_ + kShortestRound_s);
    }
}

void SimulationRun::preempt(std::uint32_t j) {
    SimulatedJob& job = jobs_[j];
    if (job.state.running) stop_running(job);  // else it stopped with its host
    ++job.state.preemptions;
    ++outcome_.jobs[j].preemptions;
    job.has_checkpoint = true;
    if (!checkpoints_.take_time(job.state.spec->checkpoint_bytes)) return;
    leave(j);
    away_.push_back(j);
    checkpoints_.begin_transfer(j, job.state.spec->checkpoint_bytes);
}

void SimulationRun::transfer_ended(std::uint32_t j) {
    if (jobs_[j].live) {  // the checkpoint has been read
        jobs_[j].ready_s = now_s_ + jobs_[j].state.spec->restart_s;
        jobs_[j].predict(now_s_);
        return;
    }
    std::erase(away_, j);
    enter(j);
}

void SimulationRun::start(std::uint32_t j, const Start& start) {
    SimulatedJob& job = jobs_[j];
    JobState& state = job.state;
    const bool is_restart = state.first_started_s != kNever;
    note_start(state, start, now_s_);
    outcome_.jobs[j].start_s = state.first_started_s;
    const std::uint32_t largest = std::max(1U, gpus_on_largest_node_[start.gpu_type]);
    job.ideal_rate_unshared = ideal_rate(workload_.jobs[j], start.gpu_type, start.gpus) *
                              consolidation(*state.spec, static_cast<std::uint32_t>(start.placement.size()),
                                            (start.gpus + largest - 1) / largest);
    if (start.packed_with) {
        const auto host = static_cast<std::uint32_t>(ids_[*start.packed_with]);
        state.packed_with = &jobs_[host].state;
        ++jobs_[host].guests;
        packed_on_[j] = host;
        const JobSpec& host_spec = *jobs_[host].state.spec;
        const PairParts parts = shared_parts(&workload_.pair_rates, host_spec, *state.spec, start.gpu_type, start.gpus);
        jobs_[host].shared_part = parts.first;
        job.shared_part = parts.second;
    }
    job.accounted_s = now_s_;
    const bool is_resized = std::exchange(job.is_resized, false);
    job.paused = is_restart && !is_resized;
    job.ready_s = now_s_ + (is_resized ? 0 : state.spec->restart_s);
    checkpoints_.note_start(j, state.spec->checkpoint_bytes, job.reader.remaining_bytes, now_s_);
    if (is_restart && !is_resized && job.has_checkpoint && checkpoints_.take_time(state.spec->checkpoint_bytes)) {
        job.ready_s = kNever;  // until the checkpoint is read, and after a resize first written
        checkpoints_.begin_transfer(j, state.spec->checkpoint_bytes * (job.moves ? 2 : 1));
    }
    job.moves = false;
    data_->start(job, j, now_s_);
    running_.push_back(&job);
    plan_due_ = true;
}

void SimulationRun::stop_to_resize(std::uint32_t j, const Start& start) {
    const JobState& state = jobs_[j].state;
    const bool has_begun = state.running && jobs_[j].ready_s <= now_s_;
    jobs_[j].is_resized = has_begun && state.spec->resizable && goes_on(state, start);
    if (state.running) stop_running(jobs_[j]);
    if (jobs_[j].is_resized) return;
    jobs_[j].has_checkpoint = jobs_[j].moves = true;
    ++jobs_[j].state.preemptions;
    ++outcome_.jobs[j].preemptions;
}

void SimulationRun::lose(std::uint32_t j) {
    SimulatedJob& job = jobs_[j];
    job.reader.remaining_bytes = checkpoints_.remaining_bytes(j);
    if (job.state.packed_with == nullptr) placer_.release(j);
    stop_running(job);
    job.has_checkpoint = job.reader.remaining_bytes < job.state.spec->total_bytes;
    ++outcome_.jobs[j].failures;
}

void SimulationRun::account(SimulatedJob& job) {
    if (job.accounted_s >= now_s_) return;
    add_run(job.state, job.accounted_s, now_s_, options_.policy.window());
    shares_.add(job.state.spec->tenant, job.accounted_s, now_s_, job.state.gpus);
    job.accounted_s = now_s_;
}

void SimulationRun::account_all() {
    for (SimulatedJob* job : running_) account(*job);
}

}  // namespace larder::scheduler
