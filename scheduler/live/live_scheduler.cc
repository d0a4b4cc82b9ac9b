#include "scheduler/live/live_scheduler.h"

#include <boost/unordered/unordered_flat_map.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "base/server/logging.h"

namespace larder::scheduler {
namespace {

// Time between records of jobs' progress. Progress lost in a crash is counted again from the nodes' counters.
constexpr double kProgressSavedEvery_s = 5;
// One such record has at most so many jobs, which take turns. A store that keeps old values, as etcd does, would grow
// by all of a long queue.
constexpr std::size_t kProgressJobs = 90;
// Time from a failed decision to the next attempt.
constexpr double kRetryDelay_s = 1;
// Nodes of one change. With its keys and its escapes their JSON, written twice, stays below the MiB of a change in
// etcd.
constexpr std::size_t kNodesPerChange = 100;
constexpr std::size_t kNodeBytesPerChange = std::size_t{32} << 10;
constexpr std::uint32_t kNoNode = std::numeric_limits<std::uint32_t>::max();

// Returns f* with the GPUs that the job holds, as far as it was declared.
std::optional<double> declared_rate(const JobRecord& job) {
    const auto of_type = job.asked.ideal_by_type.find(job.held->gpu_type);
    const auto declared = of_type != job.asked.ideal_by_type.end() ? of_type : job.asked.ideal_by_type.find("");
    if (declared == job.asked.ideal_by_type.end()) return std::nullopt;
    return declared->second * job.held->count / job.asked.gpus;
}

// True if the queue has no job in this attempt. Nobody else would stop the attempt.
bool is_orphan(const AttemptName& listed, const JobQueue& queue) {
    if (!listed.queue.empty()) return true;
    const auto at = queue.jobs().find(listed.job);
    return at == queue.jobs().end() || at->second.attempt != listed.attempt || !is_with_engine(at->second.phase);
}

}  // namespace

LiveScheduler::LiveScheduler(LiveOptions options, Engine& engine, allocator::Cluster& cluster, Save save)
    : options_(std::move(options)),
      engine_(engine),
      cluster_(cluster),
      save_(std::move(save)),
      queue_(options_.cluster, *options_.placer, options_.history_max, options_.queue_bytes_max) {}

void LiveScheduler::restore(const LiveRecord& found, Moment now) {
    for (const auto& [name, drain] : found.drains) {
        if (drain) drains_.emplace(name, *drain);
    }
    if (options_.cluster.is_open) {
        // Records name types by their place in this list.
        if (!found.gpu_types.empty()) options_.cluster.gpu_types = found.gpu_types;
        for (const auto& [name, inventory] : found.nodes) {
            if (!inventory) continue;
            inventory_.emplace(name, *inventory);
            set_node(name, *inventory);
            if (!inventory->usable) closed_by_engine_.insert(name);
            update_usable(name);
        }
        for (const auto& [_, job] : found.jobs) {
            if (job && is_with_engine(job->phase) && job->held) restore_nodes_of(*job->held);
        }
    }
    for (const auto& [name, _] : drains_) update_usable(name);
    // Rows of a former configuration, with which the nodes were the agent's.
    for (const auto& [name, _] : found.nodes) {
        if (!inventory_.contains(name)) unsaved_nodes_.insert(name);
    }
    const StorageView view = storage_view(cluster_, now.steady_ns);
    const LiveNames names(view, options_.tenants);
    for (const auto& [id, record] : found.jobs) {
        if (!record) continue;
        JobRecord job = *record;
        job.spec = spec_of(job, options_.cluster, names, view);
        if (job.registered && !is_with_engine(job.phase)) to_unregister_.insert(id);
        queue_.restore(std::move(job));
    }
    queue_.skip_numbers_to(found.last_number);
    gpu_time_by_tenant_ = found.tenants;
    set_gpu_time_of_tenants();
    queue_.place_restored(now.unix_s);
    remove_lost_registrations();
    for (JobRecord* const holder : queue_.holder_records()) {
        JobRecord& job = *holder;
        if (!is_with_engine(job.phase)) continue;
        job.sent = {.attempt = job.attempt, .resize = job.resizes};
        if (job.registered) register_job(job);
        // A start that is on record may have been carried out. So the engine must know of it before anything else.
        if (job.phase == Phase::starting) {
            engine_.start(engine_job(job));
        } else {
            engine_.adopt(engine_job(job));
        }
        if (job.is_resizing) engine_.resize(engine_job(job));
    }
    accounted_s_ = now.unix_s;
    // The first plan may come before the first decision.
    update_turns(now.unix_s);
    log_info("restored the queue",
             {{"jobs", queue_.active().size()}, {"ended", queue_.jobs().size() - queue_.active().size()}});
}

// --- users' requests

void LiveScheduler::submit(std::span<const Submission> jobs, const Submitter& by, Moment now, Submitted done) {
    const StorageView view = storage_view(cluster_, now.steady_ns);
    const SubmissionLimits limits{.cluster = options_.cluster,
                                  .tenants = options_.tenants,
                                  .datasets = view.datasets,
                                  .now_s = now.unix_s,
                                  .placer = options_.placer.get(),
                                  .by = by,
                                  .rules = options_.submit_rules,
                                  .engine_takes_parameters = options_.engine_takes_parameters};
    // A job that runs outside the queue keeps its name.
    const auto name_is_used = [&](const std::string& name) {
        const auto user = cluster_.user_of(name);
        const bool is_others = user && user != (by.uid ? by.uid : options_.own_user);
        return cluster_.registered(name) != nullptr || (is_others && !by.may_submit_for_all());
    };
    auto ids = queue_.submit(jobs, limits, name_is_used);
    if (!ids) return done(std::move(ids));
    for (const JobId id : *ids) {
        JobRecord& job = queue_.job(id);
        const auto dataset = std::ranges::find(view.datasets, job.asked.dataset, &DatasetState::name);
        if (dataset != view.datasets.end()) job.dataset_bytes = static_cast<std::uint64_t>(dataset->size_bytes);
    }
    LiveRecord change;
    for (const JobId id : *ids) change.jobs[id] = queue_.job(id);
    save_(std::move(change), [this, ids = std::move(*ids), now, done = std::move(done)](const Result<void>& result) {
        if (!result) {
            queue_.withdraw(ids);
            return done(std::unexpected(result.error()));
        }
        queue_.acknowledge(ids, now.unix_s);
        decision_due_ = true;
        done(ids);
    });
}

void LiveScheduler::cancel(JobId job, const std::string& by, Moment now, Done done) {
    if (auto cancelled = queue_.cancel(job, by, now.unix_s); !cancelled) return done(cancelled);
    decision_due_ = true;
    wait_for_save_.push_back(std::move(done));
    save();
}

Result<void> LiveScheduler::check_node(const std::string& node) const {
    const bool is_known = options_.cluster.is_open ? inventory_.contains(node) : !queue_.nodes_named(node).empty();
    if (is_known) return {};
    return fail(ErrorCode::not_found, "no jobs run on a node \"" + node + "\": larder node ls --gpus lists the nodes");
}

void LiveScheduler::drain(const std::string& node, const std::string& by, Moment now, const Done& done) {
    if (auto known = check_node(node); !known) return done(known);
    const auto commands = engine_.drain_commands(node);
    if (!commands) return done(std::unexpected(commands.error()));
    if (!commands->drain.empty()) {
        return done(
            fail(ErrorCode::unsupported,
                 "node \"" + node + "\" is drained by its cluster manager, which Larder follows: " + commands->drain));
    }
    if (drains_.try_emplace(node, NodeDrain{.by = by, .since_s = now.unix_s}).second) {
        unsaved_drains_.insert(node);
        update_usable(node);
        // Also if the engine had closed the node before: a job that was to get GPUs there waits for others now.
        queue_.close_node(node, "was drained by " + by, now.unix_s);
        decision_due_ = true;
        log_info("a node was drained", {{"node", node}, {"by", by}});
    }
    when_saved(done);
}

void LiveScheduler::undrain(const std::string& node, const std::string& by, const Done& done) {
    if (drains_.erase(node) == 0) {
        if (auto known = check_node(node); !known) return done(known);
        const auto commands = engine_.drain_commands(node);
        if (!commands) return done(std::unexpected(commands.error()));
        if (commands->undrain.empty()) {
            return done(fail(ErrorCode::not_found, "node \"" + node + "\" is not drained"));
        }
        return done(fail(
            ErrorCode::unsupported,
            "node \"" + node + "\" is taken back by its cluster manager, which Larder follows: " + commands->undrain));
    }
    unsaved_drains_.insert(node);
    update_usable(node);
    decision_due_ = true;
    log_info("a node was taken back", {{"node", node}, {"by", by}});
    when_saved(done);
}

void LiveScheduler::when_saved(Done done) {
    wait_for_save_.push_back(std::move(done));
    save();
}

// --- ticks

void LiveScheduler::tick(Moment now) {
    take_events(now);
    account(now.unix_s);
    take_reads(cluster_, queue_);
    if (decision_due_ || now.unix_s >= next_decision_s_ || now.unix_s - decided_s_ >= options_.decide_every_s)
        decide_now(now);
    queue_.begin_starts(now.unix_s);
    if (!engine_.is_connected()) connected_since_s_ = now.unix_s;
    if (options_.start_timeout_s > 0) {
        queue_.time_out_starts(options_.start_timeout_s, connected_since_s_, now.unix_s);
    }
    std::vector<JobRecord*> first_starts;
    for (const JobId id : queue_.unsaved()) {
        const auto at = queue_.jobs().find(id);
        if (at == queue_.jobs().end() || at->second.phase != Phase::starting || at->second.registered) continue;
        JobRecord& job = queue_.job(id);
        if (job.attempt == 1) first_starts.push_back(&job);
        job.registered = true;
    }
    begin_reads(cluster_, first_starts);
    count_waits();
    if (now.unix_s - progress_saved_s_ >= kProgressSavedEvery_s || now.unix_s < progress_saved_s_) {
        progress_saved_s_ = now.unix_s;
        mark_progress();
    }
    save();
}

void LiveScheduler::mark_progress() {
    const std::vector<JobId>& holders = queue_.holders().ids();
    auto next = std::ranges::upper_bound(holders, progress_saved_of_);
    for (std::size_t left = std::min(kProgressJobs, holders.size()); left > 0; --left) {
        if (next == holders.end()) next = holders.begin();
        progress_saved_of_ = *next;
        if (is_with_engine(queue_.job(*next).phase)) queue_.changed(*next);
        ++next;
    }
    progress_unsaved_ = true;
}

void LiveScheduler::take_events(Moment now) {
    removed_are_swept_ = false;
    for (const EngineEvent& event : engine_.poll()) {
        ++events_taken_;
        decision_due_ = true;
        switch (event.kind) {
            case EngineEvent::Kind::node_lost:
            case EngineEvent::Kind::node_drained:
            case EngineEvent::Kind::node_back:
            case EngineEvent::Kind::node_added:
            case EngineEvent::Kind::node_removed:
            case EngineEvent::Kind::node_resized: take_node_event(event, now); break;
            default: account(now.unix_s); queue_.take(event, now.unix_s);
        }
    }
    if (std::exchange(places_changed_, false)) queue_.forget_places_for_shapes();
    // Only after the events: an attempt may have been listed before its end was told.
    stop_orphans();
}

void LiveScheduler::stop_orphans() {
    const std::uint64_t lists = engine_.lists();
    if (std::exchange(lists_seen_, lists) == lists) return;
    for (const AttemptName& listed : engine_.list()) {
        if (!is_orphan(listed, queue_)) continue;
        log_warn(
            "an attempt that the queue does not have is stopped",
            {{"queue", listed.queue.empty() ? "own" : listed.queue}, {"job", listed.job}, {"attempt", listed.attempt}});
        engine_.stop_orphan(listed);
    }
}

void LiveScheduler::take_node_event(const EngineEvent& event, Moment now) {
    using Kind = EngineEvent::Kind;
    if (options_.cluster.is_open && event.inventory) take_inventory(event.node, *event.inventory, now);
    if (event.kind == Kind::node_resized) return;
    const bool usable = event.kind == Kind::node_back || event.kind == Kind::node_added;
    if (usable) {
        closed_by_engine_.erase(event.node);
    } else {
        closed_by_engine_.insert(event.node);
    }
    const bool changed = update_usable(event.node);
    const auto known = inventory_.find(event.node);
    if (known != inventory_.end() && std::exchange(known->second.usable, usable) != usable) {
        unsaved_nodes_.insert(event.node);
    }
    const bool is_removed = event.kind == Kind::node_removed && options_.cluster.is_open;
    if (!changed && !is_removed) return;
    const std::string what = usable                             ? "is back"
                             : event.kind == Kind::node_drained ? "was drained"
                             : is_removed                       ? "was removed"
                                                                : "was lost";
    if (!usable) queue_.close_node(event.node, what, now.unix_s);
    log_warn("a node " + what, {{"node", event.node}, {"why", event.message}});
    if (is_removed) remove_node(event.node, now);
}

bool LiveScheduler::update_usable(const std::string& node) {
    const bool usable = !closed_by_engine_.contains(node) && !drains_.contains(node);
    bool changed = false;
    for (const std::uint32_t n : queue_.nodes_named(node)) changed = set_usable(n, usable) || changed;
    return changed;
}

// Returns false if nothing has changed.
bool LiveScheduler::set_usable(std::uint32_t n, bool usable) {
    GpuNode& node = options_.cluster.nodes[n];
    if (node.gpus == 0 || std::exchange(node.usable, usable) == usable) return false;
    options_.placer->set_usable(n, usable);
    return true;
}

void LiveScheduler::take_inventory(const std::string& node, const NodeInventory& inventory, Moment now) {
    const auto known = inventory_.find(node);
    if (known != inventory_.end() && known->second == inventory) return;
    const bool usable = known == inventory_.end() || known->second.usable;
    inventory_.insert_or_assign(node, KnownNode{inventory, usable});
    unsaved_nodes_.insert(node);
    removed_nodes_.erase(node);
    set_node(node, inventory);
    queue_.shrink_node(node, now.unix_s);
    log_info("a node's GPUs", {{"node", node}, {"gpus", inventory.gpus}, {"type", inventory.gpu_type}});
}

void LiveScheduler::remove_node(const std::string& node, Moment now) {
    queue_.stop_on_removed_node(node, now.unix_s);
    if (inventory_.erase(node) > 0) removed_nodes_.insert(node);
    closed_by_engine_.erase(node);
    unsaved_nodes_.insert(node);
    for (const std::uint32_t n : queue_.nodes_named(node)) {
        options_.cluster.nodes[n].gpus = 0;
        options_.placer->set_node(n, options_.cluster.nodes[n]);
    }
    places_changed_ = true;
}

std::uint32_t LiveScheduler::type_named(const std::string& name) {
    std::vector<std::string>& types = options_.cluster.gpu_types;
    auto named = std::ranges::find(types, name);
    if (named == types.end()) named = types.insert(named, name);
    return static_cast<std::uint32_t>(named - types.begin());
}

// A job may run on a machine whose GPUs were given another type since. It keeps the node of the former type.
void LiveScheduler::restore_nodes_of(const Allotment& held) {
    std::vector<GpuNode>& nodes = options_.cluster.nodes;
    const std::uint32_t type = type_named(held.gpu_type);
    for (const NamedGpus& share : held.gpus) {
        const auto same_name = queue_.nodes_named(share.node);
        const bool is_there =
            std::ranges::any_of(same_name, [&](std::uint32_t n) { return nodes[n].gpu_type == type; });
        if (is_there || !inventory_.contains(share.node)) continue;
        const auto added = static_cast<std::uint32_t>(nodes.size());
        nodes.push_back({.name = share.node, .gpu_type = type, .gpus = 0, .usable = false});
        queue_.add_node(added);
        options_.placer->set_node(added, nodes[added]);
    }
}

// Gives a node the GPUs of its inventory. A machine whose GPUs are of another type now is another node of that name.
void LiveScheduler::set_node(const std::string& name, const NodeInventory& inventory) {
    GpuCluster& gpus = options_.cluster;
    const std::uint32_t type = type_named(inventory.gpu_type.empty() ? options_.gpu_type : inventory.gpu_type);
    const auto same_name = queue_.nodes_named(name);
    const std::vector<std::uint32_t> nodes(same_name.begin(), same_name.end());
    bool usable = !drains_.contains(name);
    bool found = false;
    for (const std::uint32_t n : nodes) {
        GpuNode& node = gpus.nodes[n];
        const bool is_same_type = node.gpu_type == type;
        if (node.gpus > 0) usable = node.usable;
        found = found || is_same_type;
        node.gpus = is_same_type ? inventory.gpus : 0;
    }
    const std::uint32_t added = found ? kNoNode : slot_for_node();
    if (!found) {
        gpus.nodes[added] = {.name = name, .gpu_type = type, .gpus = inventory.gpus, .usable = usable};
        queue_.add_node(added);
        options_.placer->set_node(added, gpus.nodes[added]);
    }
    for (const std::uint32_t n : nodes) {
        gpus.nodes[n].usable = usable && gpus.nodes[n].gpus > 0;
        options_.placer->set_node(n, gpus.nodes[n]);
    }
    places_changed_ = true;
}

// Returns the index of a node that was removed and is not in use, or a new one at the end.
std::uint32_t LiveScheduler::slot_for_node() {
    std::vector<GpuNode>& nodes = options_.cluster.nodes;
    // Once for all nodes that come at a time.
    if (free_slots_.empty() && !std::exchange(removed_are_swept_, true)) {
        const auto in_use = queue_.nodes_in_use();
        std::erase_if(removed_nodes_, [&](const std::string& name) {
            if (in_use.contains(name)) return false;
            for (const std::uint32_t n : queue_.nodes_named(name)) free_slots_.push_back(n);
            queue_.forget_node(name);
            return true;
        });
    }
    if (!free_slots_.empty()) {
        const std::uint32_t slot = free_slots_.back();
        free_slots_.pop_back();
        return slot;
    }
    nodes.emplace_back();
    return static_cast<std::uint32_t>(nodes.size() - 1);
}

// Adds the GPU time since the last call to the jobs and to their tenants.
void LiveScheduler::account(double now_s) {
    const double from_s = std::exchange(accounted_s_, now_s);
    if (!(now_s > from_s)) return;
    RunTime time(from_s, now_s, options_.window);
    boost::unordered_flat_map<std::string_view, GpuTime*> by_tenant;
    for (JobRecord* const holder : queue_.holder_records()) {
        JobRecord& job = *holder;
        if (!is_with_engine(job.phase) || !job.held) continue;
        const std::uint32_t type = queue_.type_index(job.held->gpu_type);
        if (type == kNoGpuType) continue;
        job.state.spec = &job.spec;
        job.state.gpus = job.in_use().count;
        job.state.gpu_type = type;
        add_run(job.state, time);
        GpuTime*& of_tenant = by_tenant[job.asked.tenant];
        if (of_tenant == nullptr) of_tenant = &gpu_time_by_tenant_[job.asked.tenant];
        of_tenant->add(time.stretch(), job.in_use().count);
    }
    set_gpu_time_of_tenants();
}

void LiveScheduler::set_gpu_time_of_tenants() {
    for (Tenant& tenant : options_.tenants) tenant.gpu_time = gpu_time_by_tenant_[tenant.name];
}

void LiveScheduler::decide_now(Moment now) {
    decision_due_ = false;
    decided_s_ = now.unix_s;
    next_decision_s_ = kNever;
    StorageView view = storage_view(cluster_, now.steady_ns);
    const LiveSnapshot live(queue_, options_.cluster, view, options_.tenants, options_.storage_aware, now.unix_s,
                            engine_.can_resize());
    std::vector<WaitsFor> waits_for;
    const auto actions =
        decide(*options_.policy, *options_.placer, live.input(cluster_.objective().kind, view.state), &waits_for);
    ++counts_.decisions;
    if (!actions) {
        ++counts_.decisions_failed;
        next_decision_s_ = now.unix_s + kRetryDelay_s;
        update_turns(now.unix_s);
        return log_error("could not decide: running jobs continue", {{"error", actions.error().message}});
    }
    next_decision_s_ = std::min(actions->next_s, queue_.next_retry_s(now.unix_s));
    const std::vector<JobId> ids(live.ids().begin(), live.ids().end());
    queue_.apply(*actions, ids, options_.policy->name(), now.unix_s);
    std::size_t j = 0;  // both lists are in the order of ids
    for (const JobRecord* const job : queue_.active_records()) {
        while (j < ids.size() && ids[j] < job->id) ++j;
        if (j == ids.size()) break;
        if (ids[j] != job->id || job->phase != Phase::waiting) continue;
        queue_.set_waits_for(job->id, waits_for[j], std::string(text_of(waits_for[j])), now.unix_s);
    }
    update_turns(now.unix_s);
}

// Tells the allocator which jobs take turns, so that jobs stopped for a while keep their cache, also while they end or
// start and no node reports them.
void LiveScheduler::update_turns(double now_s) {
    std::vector<allocator::Turn> turns;
    if (!options_.policy->takes_turns()) return;
    for (JobRecord* const active : queue_.active_records()) {
        JobRecord& job = *active;
        note_time_share(job.state, now_s);
        if (job.asked.dataset.empty() || job.state.first_started_s == kNever) continue;
        allocator::Turn turn{.job = job.asked.name, .time_share = job.state.time_share};
        if (const auto& on = is_with_engine(job.phase) ? job.held : job.last) {
            turn.dataset = job.asked.dataset;
            if (job.dataset_bytes > 0 && std::isfinite(job.remaining_bytes())) {
                turn.epochs = std::max(1.0, job.remaining_bytes() / static_cast<double>(job.dataset_bytes));
            }
            turn.ideal_bytes_per_second = job.last_ideal;
            for (const NamedGpus& share : on->gpus) {
                turn.ran_on.emplace_back(share.node, static_cast<std::uint32_t>(std::popcount(share.gpus)));
            }
        }
        turns.push_back(std::move(turn));
    }
    cluster_.set_turns(std::move(turns));
}

void LiveScheduler::count_waits() {
    for (const double wait_s : std::exchange(queue_.counts().waits_s, {})) {
        const auto bucket = std::ranges::lower_bound(kWaitSeconds, wait_s);
        ++counts_.waits[static_cast<std::size_t>(bucket - kWaitSeconds.begin())];
        counts_.waits_s += wait_s;
    }
}

// Puts all changes on record, then carries them out.
void LiveScheduler::save() {
    if (saving_) return;
    if (queue_.unsaved().empty() && unsaved_nodes_.empty() && unsaved_drains_.empty() && !progress_unsaved_) {
        for (const Done& done : std::exchange(wait_for_save_, {})) done({});
        return tell_engine(events_taken_);
    }
    LiveRecord change;
    std::set<std::string> nodes = add_unsaved_nodes(change);
    // The jobs may have GPUs of any of these nodes, so they come with the last of them.
    if (!unsaved_nodes_.empty()) return save_nodes(std::move(change), std::move(nodes));
    std::set<std::string> drains = add_unsaved_drains(change);
    queue_.note_cells();
    std::vector<JobId> dropped;
    for (const JobId id : queue_.unsaved()) {
        const JobRecord* const job = queue_.find_record(id);
        auto& record = change.jobs.emplace_hint(change.jobs.end(), id, std::nullopt)->second;
        if (job == nullptr) {
            dropped.push_back(id);
        } else {
            record = *job;
        }
    }
    const bool with_progress = progress_unsaved_;
    if (with_progress) change.tenants = gpu_time_by_tenant_;
    queue_.saving();
    progress_unsaved_ = false;
    saving_ = true;
    auto waiting = std::exchange(wait_for_save_, {});
    save_(std::move(change),
          [this, dropped = std::move(dropped), nodes = std::move(nodes), drains = std::move(drains), with_progress,
           events = events_taken_, waiting = std::move(waiting)](const Result<void>& result) {
              saving_ = false;
              if (!result) unsaved_drains_.insert(drains.begin(), drains.end());
              finish_save(dropped, nodes, with_progress, events, result);
              answer_waiting(waiting, result);
              // Save the next change now, so that its callers wait only for the disk, not for a tick.
              if (!wait_for_save_.empty()) save();
          });
}

// Moves some of the unsaved nodes to the change, as a store takes changes of a limited size only. Returns their names.
std::set<std::string> LiveScheduler::add_unsaved_nodes(LiveRecord& change) {
    std::set<std::string> nodes;
    std::size_t bytes = 0;
    while (!unsaved_nodes_.empty() && nodes.size() < kNodesPerChange && bytes < kNodeBytesPerChange) {
        const auto at = inventory_.find(*unsaved_nodes_.begin());
        bytes += unsaved_nodes_.begin()->size();
        auto& record = change.nodes[*unsaved_nodes_.begin()];
        if (at != inventory_.end()) {
            record = at->second;
            for (const auto& [key, label] : at->second.labels) bytes += key.size() + label.size();
        }
        nodes.insert(unsaved_nodes_.extract(unsaved_nodes_.begin()));
    }
    if (!nodes.empty()) change.gpu_types = options_.cluster.gpu_types;
    return nodes;
}

std::set<std::string> LiveScheduler::add_unsaved_drains(LiveRecord& change) {
    for (const std::string& node : unsaved_drains_) {
        const auto at = drains_.find(node);
        change.drains.emplace(node, at == drains_.end() ? std::nullopt : std::optional(at->second));
    }
    return std::exchange(unsaved_drains_, {});
}

void LiveScheduler::save_nodes(LiveRecord change, std::set<std::string> nodes) {
    saving_ = true;
    save_(std::move(change), [this, nodes = std::move(nodes)](const Result<void>& result) {
        saving_ = false;
        if (result) return save();
        note_failed_save(nodes, result.error());
        answer_waiting(std::exchange(wait_for_save_, {}), result);
    });
}

void LiveScheduler::note_failed_save(const std::set<std::string>& nodes, const Error& error) {
    if (counts_.saves_failed++ == 0) log_error("the queue could not be saved", {{"error", error.message}});
    unsaved_nodes_.insert(nodes.begin(), nodes.end());
}

void LiveScheduler::answer_waiting(const std::vector<Done>& waiting, const Result<void>& result) {
    for (const Done& done : waiting) {
        done(result ? Result<void>()
                    : fail(ErrorCode::unavailable,
                           "the queue cannot be saved at present (" + result.error().message + "); saving is retried"));
    }
}

void LiveScheduler::finish_save(std::span<const JobId> dropped, const std::set<std::string>& nodes, bool with_progress,
                                std::uint64_t events, const Result<void>& result) {
    if (!result) {
        note_failed_save(nodes, result.error());
        queue_.save_failed();
        progress_unsaved_ = progress_unsaved_ || with_progress;
        return;
    }
    for (const JobId id : dropped) engine_.forget(id);
    queue_.saved();
    tell_engine(events);
}

// --- carrying out recorded changes

void LiveScheduler::tell_engine(std::uint64_t events) {
    remove_jobs_that_ended();
    for (JobRecord* const holder : queue_.holder_records()) {
        JobRecord& job = *holder;
        if (!is_with_engine(job.phase) || queue_.unsaved().contains(job.id)) continue;
        SentToEngine& sent = job.sent;
        const bool is_new = sent.attempt != job.attempt;
        if (is_new) sent = {.attempt = job.attempt};
        if (job.phase == Phase::starting && is_new) {
            register_job(job);
            sent.declared_for = job.held->count;
            engine_.start(engine_job(job));
        }
        if (job.phase == Phase::running && std::exchange(sent.declared_for, job.held->count) != job.held->count) {
            declare_rate_again(job);
        }
        if (job.is_resizing && std::exchange(sent.resize, job.resizes) != job.resizes) {
            engine_.resize(engine_job(job));
        }
        if (job.phase == Phase::stopping && !std::exchange(sent.stop, true)) {
            // The job may have been stopped before the engine was told of it.
            if (is_new) engine_.adopt(engine_job(job));
            engine_.stop(job.id, job.attempt);
        }
    }
    engine_.recorded(events);
}

void LiveScheduler::register_job(JobRecord& job) {
    allocator::JobRegistration spec{.name = job.asked.name};
    spec.by_scheduler = true;
    spec.user = options_.own_user;
    if (job.asked.user) spec.user = job.asked.user->uid;
    if (job.asked.reader_uid) spec.user = job.asked.reader_uid;
    std::optional<allocator::JobRegistration> declared_by_user;
    if (const auto* before = cluster_.registered(job.asked.name)) {
        const bool is_for_same_user = before->user == spec.user;
        if (is_for_same_user && before->registered_by_operator()) return;
        // Somebody registered the name while the job waited, or an older version registered it without a user. What
        // the job's own user declared stays.
        if (is_for_same_user) declared_by_user = *before;
        if (auto removed = cluster_.remove_job(job.asked.name); !removed) {
            return log_warn("could not replace the registration of a job's name",
                            {{"job", job.asked.name}, {"error", removed.error().message}});
        }
    }
    if (declared_by_user) {
        spec = *declared_by_user;
        spec.owner.reset();
        spec.by_scheduler = true;
    } else if (job.dataset_bytes > 0 && std::isfinite(job.remaining_bytes())) {
        spec.epochs = std::max(1.0, job.remaining_bytes() / static_cast<double>(job.dataset_bytes));
    }
    if (const auto rate = declared_rate(job)) spec.ideal_bytes_per_second = rate;
    if (auto registered = cluster_.register_job(spec); !registered) {
        log_warn("could not register a job: its cache and bandwidth are planned from reports only",
                 {{"job", job.asked.name}, {"error", registered.error().message}});
    }
}

void LiveScheduler::declare_rate_again(const JobRecord& job) {
    const allocator::JobRegistration* const before = cluster_.registered(job.asked.name);
    const auto rate = declared_rate(job);
    if (before == nullptr || !before->by_scheduler || !rate || before->ideal_bytes_per_second == rate) return;
    allocator::JobRegistration spec = *before;
    spec.ideal_bytes_per_second = rate;
    if (job.dataset_bytes > 0 && std::isfinite(job.remaining_bytes())) {
        spec.epochs = std::max(1.0, job.remaining_bytes() / static_cast<double>(job.dataset_bytes));
    }
    auto changed = cluster_.remove_job(job.asked.name);
    if (changed) changed = cluster_.register_job(spec);
    if (!changed) {
        log_warn("could not register the rate of a resized job: its cache and bandwidth are planned from reports only",
                 {{"job", job.asked.name}, {"error", changed.error().message}});
    }
}

// Removes the registrations of a queue that was lost: nobody else would free the names of its jobs.
void LiveScheduler::remove_lost_registrations() {
    std::set<std::string_view> kept;
    for (const auto& [_, job] : queue_.jobs()) {
        if (job.registered) kept.insert(job.asked.name);
    }
    for (const std::string& name : cluster_.registered_jobs()) {
        if (kept.contains(name) || !cluster_.registered(name)->by_scheduler) continue;
        if (auto removed = cluster_.remove_job(name); !removed) {
            log_warn("a job that the queue has lost stays registered",
                     {{"job", name}, {"error", removed.error().message}});
        }
    }
}

void LiveScheduler::remove_jobs_that_ended() {
    for (const JobId id : queue_.take_left_engine()) to_unregister_.insert(id);
    std::erase_if(to_unregister_, [this](JobId id) {
        JobRecord* const left = queue_.find_record(id);
        if (left == nullptr || !left->registered || is_with_engine(left->phase)) return true;
        JobRecord& job = *left;
        if (queue_.unsaved().contains(id)) return false;
        if (cluster_.registered(job.asked.name) != nullptr) {
            // Nodes report a job for some seconds after it has stopped. remove_ended_job() takes the job out of plans
            // at once. If the job waits for its next turn, its turn (update_turns) keeps its cache. A policy without
            // turns has no such record: there a waiting job stays in plans until no node reports it.
            const bool counts_no_longer = has_ended(job.phase) || options_.policy->takes_turns();
            auto removed =
                counts_no_longer ? cluster_.remove_ended_job(job.asked.name) : cluster_.remove_job(job.asked.name);
            if (!removed) {
                log_warn("a job that has ended stays registered for now", {{"error", removed.error().message}});
                return false;
            }
        }
        job.registered = false;
        queue_.changed(id);
        return true;
    });
}

EngineJob LiveScheduler::engine_job(const JobRecord& job) const {
    const Allotment& wanted = job.is_resizing ? *job.next : *job.held;
    EngineJob run{.job = job.id,
                  .attempt = job.attempt,
                  .command = job.asked.command,
                  .directory = job.asked.directory,
                  .environment = options_.environment,
                  .gpus = wanted.gpus,
                  .resize = job.resizes,
                  .grace_s = job.asked.grace_s,
                  .user = job.asked.user,
                  .parameters = job.asked.engine_parameters};
    for (const auto& [key, value] : job.asked.environment) run.environment[key] = value;
    run.environment["LARDER_JOB"] = job.asked.name;
    run.environment["LARDER_JOB_ID"] = std::to_string(job.id);
    run.environment["LARDER_ATTEMPT"] = std::to_string(job.attempt);
    run.environment["LARDER_TENANT"] = job.asked.tenant;
    run.environment["LARDER_GPUS"] = std::to_string(wanted.count);
    std::string nodes;
    for (const NamedGpus& share : wanted.gpus) nodes += (nodes.empty() ? "" : ",") + share.node;
    run.environment["LARDER_NODES"] = nodes;
    run.environment["LARDER_NODE_COUNT"] = std::to_string(wanted.gpus.size());
    std::string pods;
    for (const std::uint32_t gpus : job.spec.shape.pods_of(wanted.count))
        pods += (pods.empty() ? "" : ",") + std::to_string(gpus);
    if (!pods.empty()) run.environment["LARDER_PODS"] = pods;
    if (!job.asked.dataset.empty()) run.environment["LARDER_DATASET"] = job.asked.dataset;
    return run;
}

Why LiveScheduler::why(const JobRecord& job, Moment now) const {
    const StorageView view = storage_view(cluster_, now.steady_ns);
    const std::string output = output_of(job);
    return scheduler::why(job,
                          {.queue = queue_,
                           .cluster = options_.cluster,
                           .placer = *options_.placer,
                           .tenants = options_.tenants,
                           .drains = drains_,
                           .view = view,
                           .bound = allocator::rate_bound(cluster_.planned_state(), cluster_.plan(), job.asked.name),
                           .policy = options_.policy->name(),
                           .output = output,
                           .now_s = now.unix_s});
}

}  // namespace larder::scheduler
