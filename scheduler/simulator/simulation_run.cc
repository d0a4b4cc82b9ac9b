#include "scheduler/simulator/simulation_run.h"

#include <algorithm>
#include <utility>

#include "scheduler/simulator/random.h"

namespace larder::scheduler {

SimulationRun::SimulationRun(const Workload& workload, const GpuCluster& cluster, Policy& policy, Placer& placer,
                             const SimulationOptions& options)
    : workload_(workload),
      cluster_(cluster),
      policy_(policy),
      placer_(placer),
      options_(options),
      datasets_(workload.datasets),
      tenants_(workload.tenants),
      shares_(options.policy, tenants_),
      failures_(options, cluster.nodes.size()),
      checkpoints_({.bytes_per_second = options.checkpoints_share_remote ? options.storage.remote_bytes_per_second
                                                                         : options.checkpoint_bytes_per_second,
                    .interval_s = options.checkpoint_interval_s,
                    .jobs_may_be_lost = options.node_lifetime_s < kNever || !options.node_losses.empty()},
                   workload.jobs.size()),
      jobs_(workload.jobs.size()),
      users_left_(workload.datasets.size()) {
    for (const std::string& type : cluster.gpu_types) gpu_types_.push_back({.name = type});
    gpus_on_largest_node_.resize(gpu_types_.size());
    for (const GpuNode& node : cluster.nodes) {
        gpu_types_[node.gpu_type].gpus += node.gpus;
        gpus_all_ += node.gpus;
        gpus_on_largest_node_[node.gpu_type] = std::max(gpus_on_largest_node_[node.gpu_type], node.gpus);
    }
    shares_.set_gpus(gpus_all_);
    data_ = std::make_unique<DataPlane>(options_, workload_.datasets, cluster);
    if (options.rate_error > 0) told_ = workload.jobs;
    Random errors(options.seed ^ 0x6572726f72U);
    for (std::size_t j = 0; j < jobs_.size(); ++j) {
        const JobSpec& spec = workload.jobs[j];
        if (!told_.empty()) {
            jobs_[j].reader.told_part = 1 + options.rate_error * (2 * errors.uniform() - 1);
            for (double& ideal : told_[j].ideal_bytes_per_second) ideal *= jobs_[j].reader.told_part;
        }
        if (spec.dataset != kNoDataset) ++users_left_[spec.dataset];
        jobs_[j].state.spec = told_.empty() ? &spec : &told_[j];
        jobs_[j].state.remaining_bytes = spec.total_bytes;
        jobs_[j].state.ran_s_by_type.resize(gpu_types_.size());
        jobs_[j].reader.remaining_bytes = spec.total_bytes;
    }
    outcome_.jobs.resize(jobs_.size());
    timeline_ = std::make_unique<Timeline>(options_, workload_, outcome_);
}

Result<SimulationOutcome> SimulationRun::run() {
    while (!is_over()) {
        const double next_s = next_event_s();
        if (next_s == kNever) break;  // nobody will ever start the jobs that wait
        advance_to(next_s);
        if (auto happened = handle_events(); !happened) return std::unexpected(happened.error().within(time_text()));
        ++outcome_.events;
        report_progress();
    }
    outcome_.end_s = now_s_;
    outcome_.tenant_ratios = shares_.ratios();
    return std::move(outcome_);
}

double SimulationRun::next_event_s() const {
    double next_s = std::min({decide_again_s_, checkpoints_.next_s(now_s_), next_refresh_s_, data_->next_report_s()});
    if (arrived_ < jobs_.size()) next_s = std::min(next_s, workload_.jobs[arrived_].submit_s);
    for (const SimulatedJob* job : running_) next_s = std::min(next_s, job->next_s);
    // Nodes fail forever, so failures alone do not keep the simulation running.
    if (next_s == kNever && !failures_.any_comes_back()) return kNever;
    return std::max(now_s_, std::min(next_s, failures_.next_s()));
}

void SimulationRun::advance_to(double until_s) {
    const double seconds = until_s - now_s_;
    if (seconds <= 0) return;
    timeline_->take(now_s_, until_s, running_, live_.size() - running_.size(), *data_);
    checkpoints_.note_instant(until_s, [&](std::uint32_t j, double at_s) {
        const SimulatedReader& reader = jobs_[j].reader;
        return std::max(0.0, reader.remaining_bytes - reader.rate * (at_s - now_s_));
    });
    data_->advance(seconds, running_, outcome_.jobs);
    transferred_ = checkpoints_.advance(seconds);
    now_s_ = until_s;
    if (now_s_ >= shares_.next_s()) account_all();
    shares_.advance(seconds, now_s_);
}

Result<void> SimulationRun::handle_events() {
    for (const std::uint32_t j : std::exchange(transferred_, {})) transfer_ended(j);
    for (const std::uint32_t j : checkpoints_.due(now_s_)) {
        checkpoints_.write(j, jobs_[j].reader.remaining_bytes, now_s_);
    }
    failures_.handle_events(now_s_, [&](std::uint32_t node, bool usable) { node_changed(node, usable); });
    for (std::size_t i = 0; i < running_.size();) {
        SimulatedJob& job = *running_[i];
        if (job.next_s > now_s_) {
            ++i;
            continue;
        }
        if (job.paused) {
            job.paused = false;
            plan_due_ = true;
            data_->resume(job, now_s_);
        } else if (job.ends_hits_next) {
            job.reader.has_read_hits = true;
            plan_due_ = true;
            job.predict(now_s_);
        } else if (job.finishes_next) {
            finish(job);
            continue;  // the last running job took its place
        } else {
            if (data_->end_epoch(job)) plan_due_ = true;
            job.predict(now_s_);
        }
        ++i;
    }
    if (next_refresh_s_ <= now_s_) {
        if (data_->refresh_shared()) plan_due_ = true;
        next_refresh_s_ = data_->next_refresh_s(now_s_);
    }
    while (arrived_ < jobs_.size() && workload_.jobs[arrived_].submit_s <= now_s_) arrive(arrived_++);
    if (decide_again_s_ <= now_s_) decide_due_ = true;
    if (std::exchange(decide_due_, false)) {
        if (auto decided = decide_now(); !decided) return decided;
    }
    if (data_->next_report_s() <= now_s_) {
        if (auto reported = data_->report(now_s_, running_, waiting()); !reported) return reported;
        plan_due_ = true;
    }
    if (options_.checkpoints_share_remote && checkpoints_.in_flight() != planned_transfers_) plan_due_ = true;
    return plan_due_ ? plan_now() : Result<void>();
}

void SimulationRun::node_changed(std::uint32_t node, bool usable) {
    placer_.set_usable(node, usable);
    data_->set_reports(node, usable, now_s_);
    const GpuNode& changed = cluster_.nodes[node];
    gpu_types_[changed.gpu_type].gpus += usable ? changed.gpus : -changed.gpus;
    double gpus = 0;
    for (const GpuTypeState& type : gpu_types_) gpus += type.gpus;
    shares_.set_gpus(gpus);
    decide_due_ = true;
    if (usable) return;
    ++outcome_.node_failures;
    std::vector<std::uint32_t> lost;
    for (const SimulatedJob* job : running_) {
        const Placement& on = job->state.placement;
        if (std::ranges::find(on, node, &NodeGpus::node) != on.end()) lost.push_back(index(*job));
    }
    // Guests first: losing a host would stop its guests as if they were preempted.
    std::ranges::stable_partition(lost, [&](std::uint32_t j) { return jobs_[j].state.packed_with != nullptr; });
    for (const std::uint32_t j : lost) lose(j);
}

Result<void> SimulationRun::decide_now() {
    decide_again_s_ = kNever;
    if (live_.empty()) return {};
    account_all();
    for (const SimulatedJob* job : running_) {
        JobState& state = jobs_[index(*job)].state;
        state.remaining_bytes = job->reader.remaining_bytes;
        state.unread_bytes = job->reader.unread_bytes;
        state.rate_bytes_per_second = job->reader.rate;
    }
    if (policy_.takes_turns()) {
        for (const JobId j : ids_) note_time_share(jobs_[j].state, now_s_);
    }
    data_->update_cached_bytes(datasets_);
    Storage storage = options_.storage;
    storage.own_caches = options_.cache.own_caches;
    const Snapshot snapshot{.now_s = now_s_,
                            .gpu_types = gpu_types_,
                            .jobs = live_,
                            .tenants = tenants_,
                            .datasets = datasets_,
                            .storage = storage,
                            .pair_rates = &workload_.pair_rates,
                            .storage_aware = options_.storage_aware};
    data_->update_near_nodes(near_);
    const auto near = [](const void* self, std::uint32_t job) {
        const auto& simulation = *static_cast<const SimulationRun*>(self);
        return simulation.near_.holders_of(simulation.live_[job]->spec->dataset);
    };
    DecideInput input{.snapshot = snapshot, .ids = ids_, .near = near, .context = this, .cluster = &cluster_};
    if (options_.places_by_plan && options_.storage_aware && data_->plans_by_place()) {
        input.plan_input = [this] { return data_->plan_input(now_s_, running_, waiting(), live_); };
    }
    const auto actions = decide(policy_, placer_, input);
    if (!actions) return std::unexpected(actions.error());
    ++outcome_.decisions;
    decide_again_s_ = std::max(actions->next_s, now_s_ + kShortestRound_s);
    // Job ids, since stopping a job changes which jobs are live.
    std::vector<std::uint32_t> stops;
    for (const std::uint32_t at : actions->stops) stops.push_back(static_cast<std::uint32_t>(ids_[at]));
    // Stop all resized jobs before any of them starts: a guest stops with its host.
    std::vector<std::pair<std::uint32_t, const Start*>> resized;
    for (const Start& one : actions->starts) {
        const auto j = static_cast<std::uint32_t>(ids_[one.job]);
        if (std::ranges::find(stops, j) != stops.end()) resized.emplace_back(j, &one);
    }
    for (const auto& [j, new_start] : resized) stop_to_resize(j, *new_start);
    for (const auto& [j, new_start] : resized) start(j, *new_start);
    for (const Start& one : actions->starts) {
        const auto j = static_cast<std::uint32_t>(ids_[one.job]);
        if (std::ranges::find(stops, j) == stops.end()) start(j, one);
    }
    note_promises(*actions, now_s_, [&](std::uint32_t at) -> JobState& { return jobs_[ids_[at]].state; });
    std::vector<std::uint32_t> expired;
    for (const Refused& refused : actions->refused) {
        const auto j = static_cast<std::uint32_t>(ids_[refused.job]);
        const JobState& state = jobs_[j].state;
        if (!state.running && state.spec->deadline_s <= now_s_) expired.push_back(j);
    }
    for (const std::uint32_t j : stops) {
        const bool is_resized = std::ranges::any_of(resized, [&](const auto& one) { return one.first == j; });
        if (!is_resized) preempt(j);
    }
    for (const std::uint32_t j : expired) expire(j);
    return {};
}

std::span<SimulatedJob* const> SimulationRun::waiting() {
    waiting_.clear();
    if (!policy_.takes_turns()) return waiting_;
    for (const JobId j : ids_) {
        if (waits_for_turn(jobs_[j].state)) waiting_.push_back(&jobs_[j]);
    }
    for (const std::uint32_t j : away_) waiting_.push_back(&jobs_[j]);
    return waiting_;
}

Result<void> SimulationRun::plan_now() {
    plan_due_ = false;
    ++outcome_.plans;
    if (options_.checkpoints_share_remote) share_remote_with_checkpoints();
    if (auto planned = data_->plan(now_s_, running_, waiting()); !planned) return planned;
    for (SimulatedJob* job : running_) job->predict(now_s_);
    next_refresh_s_ = data_->next_refresh_s(now_s_);
    return {};
}

void SimulationRun::share_remote_with_checkpoints() {
    planned_transfers_ = checkpoints_.in_flight();
    const double remote = options_.storage.remote_bytes_per_second;
    double readers = 0;
    double needed = 0;
    for (const SimulatedJob* job : running_) {
        if (job->reads_nothing()) continue;
        readers += 1;
        needed += job->reader.ideal * (1 - job->reader.hit_ratio) * job->reader.fetch_part;
    }
    const auto transfers = static_cast<double>(planned_transfers_);
    const double taken = transfers > 0 ? std::max(remote * transfers / (transfers + readers), remote - needed) : 0;
    data_->set_remote(remote - taken);
    if (taken > 0) checkpoints_.set_bandwidth(taken);
}

void SimulationRun::report_progress() {
    constexpr std::uint64_t kEvery = 4096;
    if (!options_.progress || outcome_.events % kEvery != 0) return;
    options_.progress({.now_s = now_s_, .events = outcome_.events, .jobs_done = done_, .jobs = jobs_.size()});
}

}  // namespace larder::scheduler
