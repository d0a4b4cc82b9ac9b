#include "scheduler/simulator/data_plane.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "allocator/model.h"
#include "base/assert.h"
#include "scheduler/simulator/node_bounds.h"
#include "scheduler/simulator/planned_cluster.h"

namespace larder::scheduler {
namespace {

// Returns f* of the job with its present GPUs, less what jobs that share them cost.
double ideal_of(const SimulatedJob& job) {
    return job.ideal_rate_unshared * job.shared_part;
}

// Sets the rate for the reader's present hit ratio.
void refresh_rate(SimulatedReader& reader) {
    reader.hit_ratio = rest_hit_ratio(reader);
    set_rate(reader);
}

// Sets the job's unread bytes to the sum over its parts.
void add_up(SimulatedJob& job) {
    job.reader.unread_bytes = 0;
    job.reader.unread_cached_bytes = 0;
    for (const ReaderPart& part : job.parts) {
        job.reader.unread_bytes += part.node_reader->unread_bytes;
        job.reader.unread_cached_bytes += part.node_reader->unread_cached_bytes;
    }
}

// Splits the job's rate among its parts, which keep pace with each other.
void spread_rate(SimulatedJob& job) {
    for (const ReaderPart& part : job.parts) {
        part.node_reader->rate = job.reader.rate * part.fraction;
        part.node_reader->hit_ratio = rest_hit_ratio(*part.node_reader);
    }
}

SimulatedReader& reader_of(SimulatedJob& job, const ReaderPart& part) {
    return part.node_reader == nullptr ? job.reader : *part.node_reader;
}

}  // namespace

DataPlane::DataPlane(const SimulationOptions& options, std::span<const DatasetState> datasets,
                     const GpuCluster& cluster)
    : options_(options),
      datasets_(datasets),
      cluster_(cluster),
      system_(make_cache_system(options.cache)),
      equal_shares_(options, datasets, cluster.nodes.size()),
      storage_(options.storage) {
    for (const GpuNode& node : cluster.nodes) gpus_all_ += node.gpus;
    if (options.reported_plans) reported_ = std::make_unique<ReportedPlans>(options, datasets, cluster);
}

Store& DataPlane::store_for(std::uint32_t dataset, std::uint32_t node, std::uint32_t shared_on) {
    const bool is_shared = !system_->has_store_per_job() || shared_on != kAllNodes;
    const std::pair place(dataset, shared_on != kAllNodes ? shared_on : node);
    if (is_shared) {
        const auto found = by_place_.find(place);
        if (found != by_place_.end()) return *found->second;
    }
    auto created = std::make_unique<Store>();
    created->dataset = dataset;
    created->node = node;
    created->size_bytes = datasets_[dataset].size_bytes;
    Store& store = *created;
    stores_.push_back(std::move(created));
    if (is_shared) by_place_[place] = &store;
    return store;
}

// Each GPU of the job reads an equal part of its epoch, through its node's store.
void DataPlane::find_stores(SimulatedJob& job) {
    const std::uint32_t dataset = job.state.spec->dataset;
    if (!options_.cache.own_caches) {
        const bool may_share = system_->shares_stores_on_node() && job.state.placement.size() == 1;
        const std::uint32_t shared_on = may_share ? job.state.placement.front().node : kAllNodes;
        job.parts.push_back({.store = &store_for(dataset, kAllNodes, shared_on)});
    } else {
        const double gpus = gpu_count(job.state.placement);
        for (const NodeGpus& share : job.state.placement) {
            job.parts.push_back({.store = &store_for(dataset, share.node), .fraction = share.count() / gpus});
        }
    }
    if (job.parts.size() > 1) {
        for (ReaderPart& part : job.parts)
            part.node_reader = std::make_unique<SimulatedReader>(SimulatedReader{.job_reader = &job.reader});
        split_.push_back(&job);
    }
    for (const ReaderPart& part : job.parts) part.store->readers.push_back(&reader_of(job, part));
}

void DataPlane::start(SimulatedJob& job, std::uint32_t index, double now_s) {
    SimulatedReader& reader = job.reader;
    reader.job = index;
    reader.weight = job.state.spec->weight;
    reader.ideal = ideal_of(job);
    reader.started = starts_++;
    reader.bandwidth = 0;
    reader.hit_ratio = 0;
    reader.rate = 0;
    reader.shares_fetches = false;
    reader.fetch_part = 1;
    job.parts.clear();
    if (job.reads_nothing()) return;
    find_stores(job);
    if (!system_->is_fluid()) {
        if (!reader.turns.empty()) std::erase(job.parts.front().store->paused, &reader);
        begin_turn(reader, now_s);
    }
    if (reported_ != nullptr) reported_->note_start(job, now_s);
    if (reader.unread_bytes <= 0) {
        begin_epoch(job);
        return;
    }
    // The job resumes within its epoch. It has read the same part of the cached blocks as of all others, or more of
    // them if it reads them first.
    const double unread = reader.unread_bytes;
    const double unread_cached_max = system_->substitutes_hits() ? reader.unread_cached_bytes : unread;
    for (const ReaderPart& part : job.parts) {
        SimulatedReader& reader_on_node = reader_of(job, part);
        reader_on_node.unread_bytes = unread * part.fraction;
        reader_on_node.unread_cached_bytes =
            std::min({reader_on_node.unread_bytes, unread_cached_max,
                      part.store->cached_bytes * reader_on_node.unread_bytes / part.store->size_bytes});
    }
    if (job.parts.size() > 1) add_up(job);
}

void DataPlane::stop(SimulatedJob& job, bool dataset_is_done, double now_s) {
    job.reader.rate = 0;
    if (job.parts.empty()) return;
    if (!system_->is_fluid() && job.reader.remaining_bytes > 0) {
        end_turn(job.reader, now_s);
        job.parts.front().store->paused.push_back(&job.reader);
    }
    for (const ReaderPart& part : job.parts) std::erase(part.store->readers, &reader_of(job, part));
    if (job.parts.size() > 1) std::erase(split_, &job);
    const std::uint32_t dataset = job.state.spec->dataset;
    const Store* first = job.parts.front().store;
    const auto is_removed = [&](const std::unique_ptr<Store>& store) {
        if (system_->has_store_per_job()) return store.get() == first && store->readers.empty();
        return dataset_is_done && reported_ == nullptr && store->dataset == dataset && store->readers.empty();
    };
    job.parts.clear();
    if (!dataset_is_done && !system_->has_store_per_job()) return;
    for (const auto& store : stores_) {
        if (!is_removed(store)) continue;
        std::erase_if(by_place_, [&](const auto& at_place) { return at_place.second == store.get(); });
    }
    std::erase_if(stores_, is_removed);
}

void DataPlane::forget(const SimulatedJob& job) {
    for (const auto& store : stores_) std::erase(store->paused, &job.reader);
}

void DataPlane::advance(double seconds, std::span<SimulatedJob* const> running, std::vector<JobOutcome>& outcomes) {
    for (SimulatedJob* job : split_) spread_rate(*job);
    for (const auto& store : stores_) {
        if (store->readers.empty()) continue;
        read_.clear();
        for (const SimulatedReader* reader : store->readers) read_.push_back(reader->rate * seconds);
        if (system_->is_fluid()) {
            larder::scheduler::advance(*store, read_);
        } else {
            for (std::size_t i = 0; i < read_.size(); ++i) {
                store->readers[i]->unread_bytes = std::max(0.0, store->readers[i]->unread_bytes - read_[i]);
            }
        }
    }
    for (SimulatedJob* job : split_) add_up(*job);
    for (SimulatedJob* job : running) {
        SimulatedReader& reader = job->reader;
        JobOutcome& outcome = outcomes[reader.job];
        const double bytes = std::min(reader.rate * seconds, reader.remaining_bytes);
        reader.remaining_bytes -= bytes;
        outcome.read_bytes += bytes;
        outcome.remote_bytes += job->reads_nothing() ? 0 : bytes * (1 - reader.hit_ratio) * reader.fetch_part;
        const double gpu_s = seconds * job->state.gpus;
        if (job->state.packed_with == nullptr) outcome.allocated_gpu_s += gpu_s;
        if (job->paused) continue;
        if (job->ideal_rate_unshared > 0) outcome.useful_gpu_s += gpu_s * reader.rate / job->ideal_rate_unshared;
        outcome.equal_bytes += seconds * (job->reads_nothing() ? reader.ideal : reader.equal_rate);
    }
}

void DataPlane::begin_epoch(SimulatedJob& job) {
    for (const ReaderPart& part : job.parts) {
        SimulatedReader& reader_on_node = reader_of(job, part);
        if (part.node_reader != nullptr) reader_on_node.remaining_bytes = job.reader.remaining_bytes * part.fraction;
        larder::scheduler::begin_epoch(*part.store, reader_on_node, part.fraction);
    }
    if (job.parts.size() > 1) add_up(job);
}

bool DataPlane::end_epoch(SimulatedJob& job) {
    SimulatedReader& reader = job.reader;
    const double need_before = reader.ideal * (1 - reader.hit_ratio);
    const double rate_before = reader.rate;
    const bool first = std::exchange(reader.first_epoch, false);
    begin_epoch(job);
    if (!system_->is_fluid()) return first;
    refresh_rate(reader);
    // A plan for every epoch of every job would cost most of the run time, and change nothing where caches are full.
    constexpr double kNeedChangeMin = 0.002;
    constexpr double kRateChangeMin = 0.02;
    const double need = reader.ideal * (1 - reader.hit_ratio);
    return has_node_bounds(options_) ||
           std::abs(need - need_before) > kNeedChangeMin * storage_.remote_bytes_per_second ||
           std::abs(reader.rate - rate_before) > kRateChangeMin * rate_before;
}

void DataPlane::find_waiting(std::span<SimulatedJob* const> waiting) {
    waiting_.clear();
    if (system_->has_store_per_job()) return;
    for (SimulatedJob* job : waiting) {
        if (job->reads_nothing()) continue;
        const std::uint32_t node = options_.cache.own_caches ? job->last_placement.front().node : kAllNodes;
        const auto store = by_place_.find({job->state.spec->dataset, node});
        if (store == by_place_.end()) continue;
        job->reader.store = store->second->index;
        waiting_.push_back({.reader = &job->reader,
                            .gpus = job->last_gpus,
                            .time_share = job->state.time_share,
                            .placement = &job->last_placement});
    }
}

// Lists the jobs that read, the stores, and the jobs that wait for a turn.
ReadersState DataPlane::describe(double now_s, std::span<SimulatedJob* const> running,
                                 std::span<SimulatedJob* const> waiting) {
    planned_jobs_.clear();
    readers_.clear();
    gpus_.clear();
    placements_.clear();
    time_shares_.clear();
    planned_.clear();
    for (SimulatedJob* job : running) {
        if (job->parts.empty()) continue;
        planned_jobs_.push_back(job);
        readers_.push_back(&job->reader);
        gpus_.push_back(job->state.gpus);
        placements_.push_back(&job->state.placement);
        time_shares_.push_back(job->state.time_share);
    }
    for (const auto& store : stores_) {
        store->index = static_cast<std::uint32_t>(planned_.size());
        for (SimulatedReader* reader : store->readers) reader->store = store->index;
        planned_.push_back(store.get());
    }
    for (SimulatedJob* job : split_) job->reader.store = job->parts.front().node_reader->store;
    find_waiting(waiting);
    return {.now_s = now_s,
            .readers = readers_,
            .stores = planned_,
            .gpus = gpus_,
            .gpus_all = gpus_all_,
            .storage = storage_,
            .nodes = cluster_.nodes,
            .placements = placements_,
            .time_shares = time_shares_,
            .waiting = waiting_,
            .node_disk_bytes_per_second = options_.node_disk_bytes_per_second,
            .node_nic_bytes_per_second = options_.node_nic_bytes_per_second,
            .epochs_known = options_.cache.epochs_known,
            .caches_by_job = system_->has_store_per_job(),
            .stores_set_hits = system_->is_fluid()};
}

bool DataPlane::plans_by_place() const {
    return options_.cache.cache == CacheKind::uniform && options_.cache.bandwidth == BandwidthKind::joint &&
           (options_.cache.own_caches || has_node_bounds(options_));
}

PlanInput DataPlane::plan_input(double now_s, std::span<SimulatedJob* const> running,
                                std::span<SimulatedJob* const> waiting, std::span<const JobState* const> live) {
    PlannedCluster planned;
    planned.describe(describe(now_s, running, waiting), options_.cache.own_caches);
    PlanInput input{.cluster = &cluster_,
                    .state = std::move(planned.state),
                    .objective = options_.cache.objective,
                    .node_of = std::vector<std::uint32_t>(cluster_.nodes.size()),
                    .job_of = {},
                    .dataset_of = std::move(planned.dataset_at),
                    .epochs_known = options_.cache.epochs_known};
    // The readers' own ideals are those that nodes bounded in the last plan.
    for (std::size_t i = 0; i < planned_jobs_.size(); ++i) {
        const SimulatedJob& job = *planned_jobs_[i];
        input.state.jobs[i].ideal_bytes_per_second = ideal_of(job) * job.reader.told_part;
    }
    std::iota(input.node_of.begin(), input.node_of.end(), 0U);
    std::unordered_map<const JobState*, std::uint32_t> planned_at;
    for (std::uint32_t i = 0; i < planned_jobs_.size(); ++i) planned_at.emplace(&planned_jobs_[i]->state, i);
    input.job_of.reserve(live.size());
    for (const JobState* const job : live) {
        const auto found = planned_at.find(job);
        input.job_of.push_back(found == planned_at.end() ? PlanInput::kUnknown : found->second);
    }
    return input;
}

Result<void> DataPlane::plan(double now_s, std::span<SimulatedJob* const> running,
                             std::span<SimulatedJob* const> waiting) {
    for (SimulatedJob* job : running) {
        job->reader.ideal = ideal_of(*job);
        if (job->parts.empty()) {
            job->reader.rate = job->reader.ideal;
        } else {
            job->reader.cap = kNever;
        }
    }
    const ReadersState state = describe(now_s, running, waiting);
    equal_shares_.set(state.storage.remote_bytes_per_second, planned_jobs_, waiting);
    const bool bound = has_node_bounds(options_) && !planned_jobs_.empty();
    if (bound && !system_->is_fluid()) {
        // Bounds need the hit ratios, which only a plan sets.
        if (auto planned = system_->plan(state); !planned) return planned;
    }
    if (bound && !options_.cache.own_caches) bound_ideals(state, planned_jobs_);
    if (reported_ != nullptr) {
        for (SimulatedReader* reader : readers_) refresh_rate(*reader);
    } else if (auto planned = system_->plan(state); !planned) {
        return planned;
    }
    if (bound) bound_rates(state, planned_jobs_);
    for (SimulatedJob* job : split_) spread_rate(*job);
    // Jobs that start up are planned for, as by the daemon, but read nothing yet.
    for (SimulatedJob* job : running) {
        if (job->paused) job->reader.rate = 0;
    }
    return {};
}

void DataPlane::resume(SimulatedJob& job, double now_s) {
    if (reported_ != nullptr) reported_->note_start(job, now_s);
}

Result<void> DataPlane::report(double now_s, std::span<SimulatedJob* const> running,
                               std::span<SimulatedJob* const> waiting) {
    return reported_->report(now_s, running, waiting, stores_);
}

void DataPlane::set_reports(std::uint32_t node, bool reports, double now_s) {
    if (reported_ != nullptr) reported_->set_reports(node, reports, now_s, stores_);
}

bool DataPlane::refresh_shared() {
    if (!system_->is_fluid()) return true;
    bool changed = false;
    const auto refresh = [&](SimulatedReader& reader) {
        const double before = reader.hit_ratio;
        if (reader.rate > 0) refresh_rate(reader);
        changed = changed || std::abs(reader.hit_ratio - before) > 1e-3;
    };
    for (SimulatedJob* job : split_) {
        refresh(job->reader);
        spread_rate(*job);
    }
    for (const auto& store : stores_) {
        if (store->readers.size() < 2) continue;
        for (SimulatedReader* reader : store->readers) {
            if (reader->job_reader == nullptr) refresh(*reader);
        }
    }
    return changed;
}

double DataPlane::next_refresh_s(double now_s) const {
    if (!system_->is_fluid()) return system_->next_plan_s(stores_, now_s);
    double soonest = kNever;
    for (const auto& store : stores_) {
        if (store->readers.size() < 2 || !store->fills()) continue;
        double admitted = 0;
        for (const SimulatedReader* reader : store->readers) admitted += larder::scheduler::remote_rate(*reader);
        if (!(admitted > 0)) continue;
        // Limits how far an epoch's hit ratio moves between two refreshes.
        const double step = std::max(std::min(store->size_bytes / 32, store->quota_bytes - store->cached_bytes), 1e6);
        soonest = std::min(soonest, now_s + step / admitted);
    }
    return soonest;
}

double DataPlane::remote_rate(std::span<SimulatedJob* const> running) const {
    double rate = 0;
    for (const SimulatedJob* job : running) {
        if (!job->reads_nothing()) rate += larder::scheduler::remote_rate(job->reader);
    }
    return rate;
}

double DataPlane::cached_bytes_all() const {
    double cached = 0;
    for (const auto& store : stores_) cached += store->cached_bytes;
    return cached;
}

double DataPlane::cached_bytes(std::uint32_t dataset) const {
    double cached = 0;
    for (const auto& store : stores_) {
        if (store->dataset == dataset) cached += store->cached_bytes;
    }
    return cached;
}

void DataPlane::update_cached_bytes(std::span<DatasetState> datasets) const {
    if (system_->has_store_per_job()) return;
    for (const auto& store : stores_) datasets[store->dataset].cached_bytes = 0;
    for (const auto& store : stores_) {
        double& cached_bytes = datasets[store->dataset].cached_bytes;
        cached_bytes = std::max(cached_bytes, store->cached_bytes);
    }
}

void DataPlane::update_near_nodes(NearNodes& near) const {
    if (!options_.cache.own_caches) return;
    near.begin(datasets_.size());
    for (const auto& store : stores_) near.add(store->dataset, store->node, store->cached_bytes);
    near.finish();
}

}  // namespace larder::scheduler
