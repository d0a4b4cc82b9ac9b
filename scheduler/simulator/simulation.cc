#include "scheduler/simulator/simulation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/assert.h"
#include "scheduler/decide.h"
#include "scheduler/simulator/checkpoints.h"
#include "scheduler/simulator/data_plane.h"
#include "scheduler/simulator/node_failures.h"
#include "scheduler/simulator/tenant_shares.h"
#include "scheduler/simulator/timeline.h"

namespace larder::scheduler {
namespace {

class Simulation {
public:
    Simulation(const Workload& workload, const GpuCluster& cluster, Policy& policy, Placer& placer,
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
          checkpoints_(options.checkpoint_bytes_per_second, options.checkpoint_interval_s, workload.jobs.size()),
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
        for (std::size_t j = 0; j < jobs_.size(); ++j) {
            const JobSpec& spec = workload.jobs[j];
            if (spec.dataset != kNoDataset) ++users_left_[spec.dataset];
            jobs_[j].state.spec = &spec;
            jobs_[j].state.remaining_bytes = spec.total_bytes;
            jobs_[j].state.ran_s_by_type.resize(gpu_types_.size());
            jobs_[j].reader.remaining_bytes = spec.total_bytes;
        }
        outcome_.jobs.resize(jobs_.size());
        timeline_ = std::make_unique<Timeline>(options_, workload_, outcome_);
    }

    Result<Outcome> run() {
        while (!over()) {
            const double next_s = next_event_s();
            if (next_s == kNever) break;  // jobs wait that nobody will ever start
            pass(next_s);
            if (auto happened = happen(); !happened) return std::unexpected(happened.error().within(at()));
            ++outcome_.events;
            tell_progress();
        }
        outcome_.end_s = now_s_;
        outcome_.tenant_ratios = shares_.ratios();
        return std::move(outcome_);
    }

private:
    bool over() const { return arrived_ == jobs_.size() && live_.empty() && away_.empty(); }
    std::string at() const { return "at " + std::to_string(now_s_) + " s"; }

    double next_event_s() const {
        double next_s =
            std::min({decide_again_s_, checkpoints_.next_s(now_s_), next_refresh_s_, data_->next_report_s()});
        if (arrived_ < jobs_.size()) next_s = std::min(next_s, workload_.jobs[arrived_].submit_s);
        for (const SimulatedJob* job : running_) next_s = std::min(next_s, job->next_s);
        // Nodes fail for ever: that alone is no reason to go on.
        if (next_s == kNever && !failures_.any_lost()) return kNever;
        return std::max(now_s_, std::min(next_s, failures_.next_s()));
    }

    void pass(double until_s) {
        const double seconds = until_s - now_s_;
        if (seconds <= 0) return;
        timeline_->take(now_s_, until_s, running_, live_.size() - running_.size(), *data_);
        data_->advance(seconds, running_, outcome_.jobs);
        transferred_ = checkpoints_.advance(seconds);
        now_s_ = until_s;
        if (now_s_ >= shares_.next_s()) account_all();
        shares_.pass(seconds, now_s_);
    }

    // Policies see what it attained.
    void account(SimulatedJob& job) {
        if (job.accounted_s >= now_s_) return;
        const double seconds = now_s_ - job.accounted_s;
        add_run(job.state, job.accounted_s, now_s_);
        job.accounted_s = now_s_;
        shares_.add(job.state.spec->tenant, seconds * job.state.gpus);
    }
    void account_all() {
        for (SimulatedJob* job : running_) account(*job);
    }

    Result<void> happen() {
        for (const std::uint32_t j : std::exchange(transferred_, {})) transfer_ended(j);
        for (const std::uint32_t j : checkpoints_.due(now_s_)) {
            checkpoints_.write(j, jobs_[j].reader.remaining_bytes, now_s_);
        }
        failures_.happen(now_s_, [&](std::uint32_t node, bool usable) { node_changed(node, usable); });
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
            } else if (job.finishes_next) {
                finish(job);
                continue;  // the last one took its place
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
        return plan_due_ ? plan_now() : Result<void>();
    }

    void arrive(std::uint32_t j) {
        const JobSpec& spec = *jobs_[j].state.spec;
        bool fits = false;
        for (std::uint32_t type = 0; type < gpu_types_.size(); ++type) {
            const bool may =
                spec.ideal_bytes_per_second[type] > 0 && (spec.gpu_type == kAnyGpuType || spec.gpu_type == type);
            const std::uint32_t gpus = spec.opportunistic
                                           ? total_gpus(type)
                                           : std::min(total_gpus(type), placer_.owned_gpus(spec.tenant, type));
            fits = fits || (may && gpus >= spec.gpus_min);
        }
        if (!fits) {
            outcome_.jobs[j].end = JobEnd::rejected;
            ++done_;
            return;
        }
        jobs_[j].state.waiting_since_s = now_s_;
        enter(j);
    }

    std::uint32_t total_gpus(std::uint32_t type) const {
        return gpu_types_[type].gpus + failures_.lost_gpus(cluster_, type);
    }

    // A policy sees it from now on.
    void enter(std::uint32_t j) {
        const auto before = std::ranges::lower_bound(ids_, JobId(j));
        live_.insert(live_.begin() + (before - ids_.begin()), &jobs_[j].state);
        ids_.insert(before, j);
        jobs_[j].live = true;
        shares_.change_demand(jobs_[j].state.spec->tenant, jobs_[j].state.spec->gpus);
        decide_due_ = true;
    }

    void leave(std::uint32_t j) {
        const auto found = std::ranges::lower_bound(ids_, JobId(j));
        live_.erase(live_.begin() + (found - ids_.begin()));
        ids_.erase(found);
        jobs_[j].live = false;
        shares_.change_demand(jobs_[j].state.spec->tenant, -static_cast<double>(jobs_[j].state.spec->gpus));
        decide_due_ = true;
    }

    std::uint32_t index(const SimulatedJob& job) const { return static_cast<std::uint32_t>(&job - jobs_.data()); }

    void finish(SimulatedJob& job) {
        const std::uint32_t j = index(job);
        job.reader.remaining_bytes = 0;
        if (job.state.packed_with == nullptr) placer_.release(j);
        const std::uint32_t dataset = job.state.spec->dataset;
        stop_running(job, dataset != kNoDataset && --users_left_[dataset] == 0);
        leave(j);
        outcome_.jobs[j].end = JobEnd::finished;
        outcome_.jobs[j].finish_s = now_s_;
        outcome_.jobs[j].ran_s = job.state.ran_s;
        ++done_;
    }

    // Late is worthless: it is not tried again.
    void expire(std::uint32_t j) {
        if (!jobs_[j].live || jobs_[j].state.running) return;
        leave(j);
        data_->forget(jobs_[j]);
        const std::uint32_t dataset = jobs_[j].state.spec->dataset;
        if (dataset != kNoDataset) --users_left_[dataset];
        outcome_.jobs[j].end = JobEnd::expired;
        ++done_;
    }

    void stop_running(SimulatedJob& job, bool dataset_is_done = false) {
        account(job);
        data_->stop(job, dataset_is_done, now_s_);
        checkpoints_.stopped(index(job));
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

    void unpack(SimulatedJob& job) {
        if (job.state.packed_with != nullptr) --jobs_[packed_on_[index(job)]].guests;
        job.state.packed_with = nullptr;
        packed_on_.erase(index(job));
        if (job.guests == 0) return;
        // Its host goes: the guest has no GPUs of its own, and waits for the next decision, which is due soon: within a
        // decision, `decide_due_` would be looked at only when something else happens.
        for (const auto& [guest, host] : std::vector(packed_on_.begin(), packed_on_.end())) {
            if (host != index(job)) continue;
            stop_running(jobs_[guest]);
            decide_again_s_ = std::min(decide_again_s_, now_s_ + kShortestRound_s);
        }
    }

    // Stopped for others; it writes its checkpoint before it may start again.
    void preempt(std::uint32_t j) {
        SimulatedJob& job = jobs_[j];
        if (!job.state.running) return;  // went with its host
        stop_running(job);
        ++job.state.preemptions;
        ++outcome_.jobs[j].preemptions;
        job.has_checkpoint = true;
        if (!checkpoints_.take_time(job.state.spec->checkpoint_bytes)) return;
        leave(j);
        away_.push_back(j);
        checkpoints_.begin(j, job.state.spec->checkpoint_bytes);
    }

    void transfer_ended(std::uint32_t j) {
        if (jobs_[j].live) {  // read
            jobs_[j].ready_s = now_s_ + jobs_[j].state.spec->restart_s;
            jobs_[j].predict(now_s_);
            return;
        }
        std::erase(away_, j);
        enter(j);
    }

    void start(std::uint32_t j, const Start& start) {
        SimulatedJob& job = jobs_[j];
        JobState& state = job.state;
        const bool again = state.first_started_s != kNever;
        state.running = true;
        state.gpus = start.gpus;
        state.gpu_type = start.gpu_type;
        state.opportunistic = start.opportunistic;
        state.placement = start.placement;
        state.started_s = now_s_;
        if (!again) outcome_.jobs[j].start_s = state.first_started_s = now_s_;
        const std::uint32_t largest = std::max(1U, gpus_on_largest_node_[start.gpu_type]);
        job.ideal_full = ideal_rate(*state.spec, start.gpu_type, start.gpus) *
                         consolidation(*state.spec, static_cast<std::uint32_t>(start.placement.size()),
                                       (start.gpus + largest - 1) / largest);
        if (start.packed_with) {
            const auto host = static_cast<std::uint32_t>(ids_[*start.packed_with]);
            state.packed_with = &jobs_[host].state;
            ++jobs_[host].guests;
            packed_on_[j] = host;
        }
        job.accounted_s = now_s_;
        job.paused = again;
        job.ready_s = now_s_ + state.spec->restart_s;
        checkpoints_.started(j, state.spec->checkpoint_bytes, job.reader.remaining_bytes, now_s_);
        if (again && job.has_checkpoint && checkpoints_.take_time(state.spec->checkpoint_bytes)) {
            job.ready_s = kNever;  // until it is read
            checkpoints_.begin(j, state.spec->checkpoint_bytes);
        }
        data_->start(job, j, now_s_);
        running_.push_back(&job);
        plan_due_ = true;
    }

    // What it did since its last checkpoint is lost.
    double remaining_after_loss(const SimulatedJob& job) const {
        const JobSpec& spec = *job.state.spec;
        if (checkpoints_.take_time(spec.checkpoint_bytes)) return checkpoints_.remaining_bytes(index(job));
        const double since_s = std::fmod(now_s_ - job.state.started_s, options_.checkpoint_interval_s);
        return std::min(spec.total_bytes, job.reader.remaining_bytes + since_s * job.reader.rate);
    }

    void node_changed(std::uint32_t node, bool usable) {
        placer_.set_usable(node, usable);
        const GpuNode& changed = cluster_.nodes[node];
        gpu_types_[changed.gpu_type].gpus += usable ? changed.gpus : -changed.gpus;
        double gpus = 0;
        for (const GpuTypeState& type : gpu_types_) gpus += type.gpus;
        shares_.set_gpus(gpus);
        decide_due_ = true;
        if (usable) return;
        ++outcome_.node_failures;
        for (const SimulatedJob* ran : std::vector(running_.begin(), running_.end())) {
            if (!ran->state.running) continue;
            if (std::ranges::none_of(ran->state.placement, [&](const NodeGpus& share) { return share.node == node; }))
                continue;
            const std::uint32_t j = index(*ran);
            SimulatedJob& job = jobs_[j];
            job.reader.remaining_bytes = remaining_after_loss(job);
            if (job.state.packed_with == nullptr) placer_.release(j);
            stop_running(job);
            job.has_checkpoint = job.reader.remaining_bytes < job.state.spec->total_bytes;
            ++outcome_.jobs[j].failures;
        }
    }

    Result<void> decide_now() {
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
        data_->describe(datasets_);
        const Snapshot snapshot{.now_s = now_s_,
                                .gpu_types = gpu_types_,
                                .jobs = live_,
                                .tenants = tenants_,
                                .datasets = datasets_,
                                .storage = options_.storage,
                                .storage_aware = options_.storage_aware};
        data_->describe(near_);
        const auto near = [](const void* self, std::uint32_t job) {
            const auto& of = *static_cast<const Simulation*>(self);
            return of.near_.of(of.live_[job]->spec->dataset);
        };
        const auto actions =
            decide(policy_, placer_, {.snapshot = snapshot, .ids = ids_, .near = near, .context = this});
        if (!actions) return std::unexpected(actions.error());
        ++outcome_.decisions;
        decide_again_s_ = std::max(actions->next_s, now_s_ + kShortestRound_s);
        // By job, as stopping one changes who is live.
        std::vector<std::uint32_t> stops;
        for (const std::uint32_t at : actions->stops) stops.push_back(static_cast<std::uint32_t>(ids_[at]));
        // All that go on with other GPUs stop before any of them starts: who shares another's goes with it.
        std::vector<std::pair<std::uint32_t, const Start*>> resized;
        for (const Start& one : actions->starts) {
            const auto j = static_cast<std::uint32_t>(ids_[one.job]);
            if (std::ranges::find(stops, j) != stops.end()) resized.emplace_back(j, &one);
        }
        for (const auto& [j, with] : resized) stop_to_resize(j);
        for (const auto& [j, with] : resized) start(j, *with);
        for (const Start& one : actions->starts) {
            const auto j = static_cast<std::uint32_t>(ids_[one.job]);
            if (std::ranges::find(stops, j) == stops.end()) start(j, one);
        }
        for (const std::uint32_t at : actions->demoted) jobs_[ids_[at]].state.opportunistic = true;
        for (const std::uint32_t at : actions->promoted) jobs_[ids_[at]].state.opportunistic = false;
        std::vector<std::uint32_t> expired;
        for (const Refused& refused : actions->refused) {
            const auto j = static_cast<std::uint32_t>(ids_[refused.job]);
            const JobState& state = jobs_[j].state;
            if (!state.running && state.spec->deadline_s <= now_s_) expired.push_back(j);
        }
        for (const std::uint32_t at : actions->admitted) jobs_[ids_[at]].state.admitted_s = now_s_;
        for (const Promised& one : actions->promised) jobs_[ids_[one.job]].state.promised = one.times;
        for (const auto& [at, until_s] : actions->leases) jobs_[ids_[at]].state.lease_until_s = until_s;
        for (const std::uint32_t j : stops) {
            const bool goes_on = std::ranges::any_of(resized, [&](const auto& one) { return one.first == j; });
            if (!goes_on) preempt(j);
        }
        for (const std::uint32_t j : expired) expire(j);
        return {};
    }

    // With other GPUs it starts again at once: its checkpoint stays where it is.
    void stop_to_resize(std::uint32_t j) {
        if (jobs_[j].state.running) stop_running(jobs_[j]);
        ++jobs_[j].state.preemptions;
        ++outcome_.jobs[j].preemptions;
    }

    // Those that wait for their next turns.
    std::span<SimulatedJob* const> waiting() {
        waiting_.clear();
        if (!policy_.takes_turns()) return waiting_;
        for (const JobId j : ids_) {
            if (waits_for_turn(jobs_[j].state)) waiting_.push_back(&jobs_[j]);
        }
        for (const std::uint32_t j : away_) waiting_.push_back(&jobs_[j]);
        return waiting_;
    }

    Result<void> plan_now() {
        plan_due_ = false;
        ++outcome_.plans;
        if (auto planned = data_->plan(now_s_, running_, waiting()); !planned) return planned;
        for (SimulatedJob* job : running_) job->predict(now_s_);
        next_refresh_s_ = data_->next_refresh_s(now_s_);
        return {};
    }

    void tell_progress() {
        constexpr std::uint64_t kEvery = 4096;
        if (!options_.progress || outcome_.events % kEvery != 0) return;
        options_.progress({.now_s = now_s_, .events = outcome_.events, .jobs_done = done_, .jobs = jobs_.size()});
    }

    static constexpr double kShortestRound_s = 1e-3;

    const Workload& workload_;
    const GpuCluster& cluster_;
    Policy& policy_;
    Placer& placer_;
    const SimulationOptions& options_;
    std::vector<DatasetState> datasets_;
    std::vector<Tenant> tenants_;
    TenantShares shares_;
    NodeFailures failures_;
    Checkpoints checkpoints_;
    std::vector<SimulatedJob> jobs_;
    std::vector<std::uint32_t> users_left_;  // by dataset: jobs that have yet to finish
    std::vector<GpuTypeState> gpu_types_;
    std::vector<std::uint32_t> gpus_on_largest_node_;
    std::uint32_t gpus_all_ = 0;
    std::unique_ptr<DataPlane> data_;
    std::unique_ptr<Timeline> timeline_;
    NearNodes near_;
    Outcome outcome_;

    double now_s_ = 0;
    std::uint32_t arrived_ = 0;
    std::uint64_t done_ = 0;
    std::vector<std::uint32_t> away_;  // neither live nor done: checkpoints are being written
    std::vector<const JobState*> live_;
    std::vector<JobId> ids_;  // of live_
    std::vector<SimulatedJob*> running_;
    std::vector<SimulatedJob*> waiting_;                // of waiting(), kept for its memory
    std::map<std::uint32_t, std::uint32_t> packed_on_;  // guest, host
    std::vector<std::uint32_t> transferred_;
    bool decide_due_ = false;
    bool plan_due_ = false;
    double decide_again_s_ = kNever;
    double next_refresh_s_ = kNever;
};

}  // namespace

Result<Outcome> simulate(const Workload& workload, const GpuCluster& cluster, Policy& policy, Placer& placer,
                         const SimulationOptions& options) {
    const CacheKind cache = options.cache.cache;
    if (options.reported_plans &&
        (!options.cache.own_caches || cache != CacheKind::uniform || options.cache.bandwidth != BandwidthKind::joint)) {
        return fail(ErrorCode::invalid_argument,
                    "plans as daemons make them are simulated with cache uniform+joint and every node's own cache");
    }
    if (options.cache.own_caches && cache != CacheKind::uniform && cache != CacheKind::none) {
        return fail(ErrorCode::invalid_argument,
                    "nodes that cache for themselves are simulated with cache uniform or none, not with " +
                        name(options.cache));
    }
    return Simulation(workload, cluster, policy, placer, options).run();
}

}  // namespace larder::scheduler
