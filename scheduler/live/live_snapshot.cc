#include "scheduler/live/live_snapshot.h"

#include <algorithm>

namespace larder::scheduler {
namespace {

std::uint32_t type_of(const GpuCluster& cluster, const std::string& name) {
    return static_cast<std::uint32_t>(std::ranges::find(cluster.gpu_types, name) - cluster.gpu_types.begin());
}

// Returns f* with asked.gpus GPUs, by type. A measured f* is for the GPUs that the job has now, and scales f* of all
// types. `rates`: the job's in the view; null: none.
void set_ideals(std::vector<double>& ideals, const JobRecord& job, const GpuCluster& cluster, const StorageView& view,
                const JobRates* rates) {
    const bool is_measured = job.held && rates != nullptr && rates->ideal_is_measured;
    ideals.clear();
    for (const std::string& type : cluster.gpu_types) {
        auto declared = job.asked.ideal_by_type.find(type);
        if (declared == job.asked.ideal_by_type.end()) declared = job.asked.ideal_by_type.find("");
        if (declared != job.asked.ideal_by_type.end()) {
            ideals.push_back(declared->second);
        } else {
            // Unknown: the job may need all of the remote's bandwidth.
            ideals.push_back(job.asked.ideal_by_type.empty() ? std::max(1.0, view.storage.remote_bytes_per_second) : 0);
        }
    }
    if (is_measured) {
        const std::uint32_t type = type_of(cluster, job.held->gpu_type);
        const double ideal_as_asked = rates->ideal * job.asked.gpus / job.held->count;
        if (type < ideals.size() && ideals[type] > 0 && ideal_as_asked > 0) {
            const double ratio = ideal_as_asked / ideals[type];
            for (double& ideal : ideals) ideal *= ratio;
        }
    }
}

const JobRates* rates_in(const StorageView& view, const JobRecord& job) {
    const auto found = view.jobs.find(job.asked.name);
    return found == view.jobs.end() ? nullptr : &found->second;
}

// Sets what may differ from one decision to the next.
void update_spec(JobSpec& spec, const JobRecord& job, const GpuCluster& cluster, const LiveNames& names,
                 const StorageView& view, const JobRates* rates) {
    const Submission& asked = job.asked;
    set_ideals(spec.ideal_bytes_per_second, job, cluster, view, rates);
    spec.total_bytes = job.total_bytes();
    spec.preemptible = asked.preemptible;
    if (!asked.gpu_type.empty()) spec.gpu_type = type_of(cluster, asked.gpu_type);
    if (!asked.dataset.empty()) spec.dataset = names.dataset(asked.dataset);
}

}  // namespace

LiveNames::LiveNames(const StorageView& view, std::span<const Tenant> tenants) {
    for (std::uint32_t d = 0; d < view.datasets.size(); ++d) datasets_.emplace(view.datasets[d].name, d);
    for (std::uint32_t t = 0; t < tenants.size(); ++t) tenants_.emplace(tenants[t].name, t);
}

std::uint32_t LiveNames::tenant(std::string_view name) const {
    return index_of(tenants_, name, 0);
}

JobSpec spec_of(const JobRecord& job, const GpuCluster& cluster, const LiveNames& names, const StorageView& view) {
    const Submission& asked = job.asked;
    JobSpec spec{.name = asked.name,
                 .tenant = names.tenant(asked.tenant),
                 .submit_s = job.submitted_s,
                 .gpus = asked.gpus,
                 .gpus_min = asked.least_gpus(),
                 .gpus_max = asked.most_gpus(),
                 .scaling = asked.scaling,
                 .rate_by_nodes = asked.rate_by_nodes,
                 .shape = asked.shape,
                 .deadline_s = asked.deadline_s.value_or(kNever),
                 .service = asked.service,
                 .weight = asked.weight,
                 .priority = asked.priority,
                 .opportunistic = asked.opportunistic,
                 .restart_s = asked.restart_s,
                 .packed_rate = asked.packed_rate,
                 .gpu_memory_part = asked.gpu_memory_part};
    if (spec.has_range() && !spec.shape.pods.empty()) {
        const std::uint32_t pod = spec.shape.pods.front();
        spec.shape.pods.assign(spec.gpus_max / pod, pod);
    }
    update_spec(spec, job, cluster, names, view, rates_in(view, job));
    return spec;
}

LiveSnapshot::LiveSnapshot(JobQueue& queue, const GpuCluster& cluster, const StorageView& view,
                           std::span<const Tenant> tenants, bool storage_aware, double now_s,
                           std::optional<bool> engine_resizes)
    : queue_(queue),
      cluster_(cluster),
      datasets_(view.datasets),
      view_(view),
      looked_up_(view.cached_on.size()),
      names_(view, tenants) {
    for (const std::string& type : cluster.gpu_types) types_.push_back({.name = type});
    for (const GpuNode& node : cluster.nodes) types_[node.gpu_type].gpus += node.usable ? node.gpus : 0;
    nodes_of_.reserve(view.nodes.size());
    for (const std::string& node : view.nodes) nodes_of_.push_back(queue.nodes_named(node));
    near_.begin(view.cached_on.size());
    std::vector<std::uint32_t> held(cluster.nodes.size());
    std::vector<std::uint32_t> held_unusable(cluster.nodes.size());
    const std::vector<JobRecord*> records = queue.schedulable(now_s);
    ids_.reserve(records.size());
    jobs_.reserve(records.size());
    planned_.reserve(records.size());
    for (JobRecord* const record : records) {
        JobRecord& job = *record;
        planned_.push_back(fill(job, view, engine_resizes, now_s));
        ids_.push_back(job.id);
        jobs_.push_back(&job.state);
        if (job.state.packed_with != nullptr) continue;
        // GPUs of an unusable node count as long as a job holds them, so that this job takes no room from others. Its
        // GPUs are of no use to others, so it is not stopped for them.
        for (const NodeGpus& share : job.state.placement) {
            const GpuNode& node = cluster.nodes[share.node];
            if (node.usable) {
                held[share.node] += share.count();
                continue;
            }
            held_unusable[share.node] += share.count();
            types_[node.gpu_type].gpus += share.count();
            job.spec.preemptible = false;
        }
    }
    // So do those that jobs hold of a node that was made smaller.
    for (std::uint32_t n = 0; n < held.size(); ++n) {
        const GpuNode& node = cluster.nodes[n];
        types_[node.gpu_type].gpus += held[n] - std::min(held[n], node.gpus);
        if (!cluster.is_open || !node.usable || node.gpus == 0) continue;
        // Jobs that began when the machine's GPUs were of another type have them still.
        std::uint32_t of_others = 0;
        for (const std::uint32_t other : queue.nodes_named(node.name)) {
            if (other != n) of_others += held[other] + held_unusable[other];
        }
        types_[node.gpu_type].gpus -= std::min(of_others, node.gpus - std::min(held[n], node.gpus));
    }
    snapshot_ = {.now_s = now_s,
                 .gpu_types = types_,
                 .jobs = jobs_,
                 .tenants = tenants,
                 .datasets = datasets_,
                 .storage = view.storage,
                 .storage_aware = storage_aware};
}

std::uint32_t LiveSnapshot::fill(JobRecord& job, const StorageView& view, std::optional<bool> engine_resizes,
                                 double now_s) {
    const JobRates* const rates = rates_in(view, job);
    if (job.spec.name.empty()) {
        job.spec = spec_of(job, cluster_, names_, view);
    } else {
        update_spec(job.spec, job, cluster_, names_, view, rates);
    }
    // For when the job is stopped.
    if (job.phase == Phase::running && rates != nullptr) job.last_ideal = rates->ideal;
    queue_.limit_types(job);
    if (!job.asked.dataset.empty()) {
        if (job.spec.dataset == kNoDataset) {  // no node has it at present, so nothing of it is cached
            job.spec.dataset = static_cast<std::uint32_t>(datasets_.size());
            datasets_.push_back({job.asked.dataset, static_cast<double>(job.dataset_bytes)});
            names_.add_dataset(job.asked.dataset, job.spec.dataset);
        } else if (job.spec.dataset < view.datasets.size()) {
            job.dataset_bytes = static_cast<std::uint64_t>(view.datasets[job.spec.dataset].size_bytes);
        }
        job.spec.total_bytes = job.total_bytes();
    }
    JobState& state = job.state;
    state.spec = &job.spec;
    state.remaining_bytes = job.remaining_bytes();
    const Allotment* allotment = job.next ? &*job.next : job.held ? &*job.held : nullptr;
    state.running = allotment != nullptr;
    state.gpus = allotment == nullptr ? 0 : allotment->count;
    state.gpu_type = allotment == nullptr ? 0 : queue_.type_index(allotment->gpu_type);
    state.opportunistic = allotment != nullptr && allotment->opportunistic;
    state.placement.clear();
    if (allotment != nullptr) queue_.add_placement_of(*allotment, state.placement);
    state.packed_with =
        allotment != nullptr && allotment->packed_with ? &queue_.jobs().at(*allotment->packed_with).state : nullptr;
    job.spec.resizable = job.asked.elastic && job.phase == Phase::running && !job.held->packed_with;
    if (job.spec.resizable && engine_resizes && job.is_resizable != *engine_resizes) {
        job.is_resizable = *engine_resizes;
        queue_.changed(job.id);
    }
    // After a restart of the scheduler, decisions come before the engine has told.
    job.spec.resizable = job.spec.resizable && job.is_resizable;
    state.resizing = job.phase == Phase::running && (job.next || job.grow_not_before_s > now_s);
    state.rate_bytes_per_second = 0;
    state.unread_bytes = 0;
    if (rates == nullptr) return PlanInput::kUnknown;
    if (is_with_engine(job.phase)) {
        state.rate_bytes_per_second = rates->predicted;
        state.unread_bytes = rates->unread_bytes;
    }
    return rates->job;
}

DecideInput LiveSnapshot::input(allocator::ObjectiveKind objective, allocator::ClusterState& state) const {
    DecideInput input{
        .snapshot = snapshot_, .ids = ids_, .near = &LiveSnapshot::near, .context = this, .cluster = &cluster_};
    if (snapshot_.storage_aware)
        input.plan_input = [this, objective, &state] { return plan_input(objective, std::move(state)); };
    return input;
}

PlanInput LiveSnapshot::plan_input(allocator::ObjectiveKind objective, allocator::ClusterState state) const {
    PlanInput input{.cluster = &cluster_,
                    .state = std::move(state),
                    .objective = objective,
                    .node_of = std::vector(cluster_.nodes.size(), PlanInput::kUnknown),
                    .job_of = {},
                    .dataset_of = {}};
    for (std::uint32_t n = 0; n < nodes_of_.size(); ++n) {
        for (const std::uint32_t node : nodes_of_[n]) input.node_of[node] = n;
    }
    // The view has no rates of jobs that wait for their turns.
    boost::unordered_flat_map<std::string_view, std::uint32_t> waiting;
    for (std::uint32_t j = 0; j < input.state.jobs.size(); ++j) {
        if (input.state.jobs[j].waits_for_turn()) waiting.emplace(input.state.jobs[j].name, j);
    }
    input.job_of = planned_;
    for (std::size_t j = 0; j < jobs_.size() && !waiting.empty(); ++j) {
        if (planned_[j] != PlanInput::kUnknown) continue;
        const auto found = waiting.find(jobs_[j]->spec->name);
        if (found != waiting.end()) input.job_of[j] = found->second;
    }
    for (std::uint32_t d = 0; d < view_.datasets.size(); ++d)
        input.dataset_of.emplace_hint(input.dataset_of.end(), d, d);
    return input;
}

std::span<const std::uint32_t> LiveSnapshot::near(const void* self, std::uint32_t job) {
    const auto& snapshot = *static_cast<const LiveSnapshot*>(self);
    return snapshot.near(snapshot.jobs_[job]->spec->dataset);
}

std::span<const std::uint32_t> LiveSnapshot::near(std::uint32_t dataset) const {
    if (dataset < looked_up_.size() && !looked_up_[dataset]) {
        looked_up_[dataset] = true;
        for (const CachedOn& cached : view_.cached_on[dataset]) {
            for (const std::uint32_t node : nodes_of_[cached.node]) {
                near_.add(dataset, node, static_cast<double>(cached.bytes));
            }
        }
        near_.finish(dataset);
    }
    return near_.holders_of(dataset);
}

}  // namespace larder::scheduler
