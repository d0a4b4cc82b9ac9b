#include "bench/live_site.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>

#include "bench/slow_nodes.h"
#include "scheduler/placement/free_pool.h"
#include "scheduler/simulator/scenario.h"

namespace larder::bench {
namespace {

using namespace scheduler;

constexpr double kRemote = 1e11;
constexpr std::uint64_t kMemoryBytes = 25'000'000'000;
constexpr std::uint64_t kDiskBytes = 100'000'000'000;

std::string dataset_name(std::uint32_t dataset) {
    return "d" + std::to_string(dataset);
}

}  // namespace

CellConfig make_cells_config(const GpuCluster& cluster) {
    HierarchyConfig hierarchy{
        .name = "all", .gpu_type = cluster.gpu_types.front(), .levels = {}, .node_level = 2, .nodes = {}};
    hierarchy.levels = {{.name = "pair", .of = 2}, {.name = "node", .of = 4}, {.name = "rack", .of = 10}};
    for (const GpuNode& node : cluster.nodes) hierarchy.nodes.push_back(node.name);
    CellConfig config{.hierarchies = {std::move(hierarchy)}, .virtual_clusters = {}};
    const auto owned = static_cast<std::uint32_t>(cluster.nodes.size() * 39 / 40);
    config.virtual_clusters.push_back(
        {.name = "0", .cells = {{.hierarchy = 0, .level = 2, .count = owned}}, .pinned = {}});
    return config;
}

GpuCluster cluster_of(const DecideSize& size, Setting setting) {
    std::vector<GpuGroup> groups{{.type = "a", .gpus = size.nodes * 8}};
    if (setting == Setting::three_types) {
        const std::uint32_t third = size.nodes / 3 * 8;
        groups = {{.type = "a", .gpus = size.nodes * 8 - 2 * third}, {"b", third}, {"c", third}};
    }
    return make_cluster(groups, 8);
}

// Starts at once what it is told to start, and ends at once what it is told to stop.
class LiveSite::StartingEngine final : public Engine {
public:
    void start(const EngineJob& job) override {
        events_.push_back({.kind = EngineEvent::Kind::started, .job = job.job, .attempt = job.attempt});
    }
    void adopt(const EngineJob&) override {}
    void stop(JobId job, std::uint32_t attempt) override { end(job, attempt, true); }
    std::vector<AttemptName> list() const override { return {}; }
    void stop_orphan(const AttemptName&) override {}
    std::vector<EngineEvent> poll() override { return std::exchange(events_, {}); }
    void forget(JobId) override {}
    std::string output_of(JobId, std::uint32_t) const override { return ""; }

    void end(JobId job, std::uint32_t attempt, bool was_stopping) {
        events_.push_back({.kind = EngineEvent::Kind::ended,
                           .job = job,
                           .attempt = attempt,
                           .exit_code = 0,
                           .was_stopping = was_stopping});
    }

private:
    std::vector<EngineEvent> events_;
};

LiveSite::LiveSite(const DecideSize& size, Setting setting, std::unique_ptr<Policy> policy)
    : size_(size),
      setting_(setting),
      random_(1),
      cluster_({.remote_bytes_per_second = kRemote,
                .objective = {.kind = objective_of(policy->name()), .spare_room = true, .place_jobs = false}}),
      engine_(std::make_unique<StartingEngine>()) {
    for (std::uint32_t d = 0; d < size.datasets; ++d) {
        dataset_bytes_.push_back(static_cast<std::uint64_t>(1e10 * (1 + 199 * random_.uniform())));
    }
    LiveOptions options{.cluster = cluster_of(size, setting), .policy = std::move(policy)};
    gpu_types_ = options.cluster.gpu_types.size();
    for (std::uint32_t t = 0; t < 20; ++t) {
        options.tenants.push_back({.name = std::to_string(t), .weight = 1 + random_.uniform()});
    }
    if (setting == Setting::cells) {
        const std::vector<std::string> owner{"0"};
        options.placer = std::move(*Cells::create(make_cells_config(options.cluster), options.cluster, owner));
    } else {
        options.placer = std::make_unique<FreePool>(options.cluster);
    }
    live_ = std::make_unique<LiveScheduler>(std::move(options), *engine_, cluster_,
                                            [](const LiveRecord&, const LiveScheduler::Done& saved) { saved({}); });
    live_->restore({}, now());
}

LiveSite::~LiveSite() = default;

Moment LiveSite::now() const {
    return {.unix_s = now_s_, .steady_ns = static_cast<std::int64_t>(now_s_ * 1e9)};
}

Result<DecisionCosts> LiveSite::step() {
    if (jobs_made_ == 0) {
        if (auto reported = report_all(); !reported) return std::unexpected(reported.error());
        const std::uint32_t jobs =
            setting_ == Setting::cells ? size_.nodes * 39 / 40 + size_.ended : size_.running + size_.waiting;
        if (auto submitted = submit(jobs); !submitted) return std::unexpected(submitted.error());
    } else {
        now_s_ += kBetweenDecisions_s;
        if (auto reported = report_all(); !reported) return std::unexpected(reported.error());
        const std::uint32_t before = jobs_made_;
        end_jobs();
        if (auto submitted = submit(size_.ended); !submitted) return std::unexpected(submitted.error());
        if (jobs_made_ == before) return fail(ErrorCode::internal, "no job was submitted");
    }
    DecisionCosts costs;
    costs.state = cost_of([&] { static_cast<void>(cluster_.state(now().steady_ns)); });
    costs.view = cost_of([&] { static_cast<void>(storage_view(cluster_, now().steady_ns)); });
    costs.decision = cost_of([&] { live_->tick(now()); });
    // The engine's answers, and the next reports, which name the new jobs.
    for (int i = 0; i < 2; ++i) {
        now_s_ += 0.2;
        live_->tick(now());
    }
    if (auto reported = report_all(); !reported) return std::unexpected(reported.error());
    Result<std::uint64_t> planned = 0;
    costs.plan = cost_of([&] { planned = cluster_.replan(now().steady_ns); });
    if (!planned) return std::unexpected(planned.error());
    return costs;
}

std::size_t LiveSite::running() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        live_->queue().active(), [&](JobId id) { return live_->queue().jobs().at(id).phase == Phase::running; }));
}

std::size_t LiveSite::quotas() const {
    std::size_t count = 0;
    for (const allocator::DatasetPlan& dataset : cluster_.plan().datasets) count += dataset.quotas.size();
    return count;
}

void LiveSite::end_jobs() {
    std::uint32_t ended = 0;
    for (const JobId id : live_->queue().active()) {
        const JobRecord& job = live_->queue().jobs().at(id);
        if (job.phase != Phase::running || random_.uniform() > 0.02) continue;
        engine_->end(id, job.attempt, false);
        if (++ended == size_.ended) return;
    }
}

Result<void> LiveSite::submit(std::uint32_t count) {
    std::vector<Submission> jobs;
    jobs.reserve(count);
    for (std::uint32_t j = 0; j < count; ++j) jobs.push_back(make_job());
    Result<void> done;
    live_->submit(jobs, {.uid = {}, .name = "bench", .is_operator = true}, now(),
                  [&done](const Result<std::vector<JobId>>& ids) {
                      if (!ids) done = std::unexpected(ids.error());
                  });
    return done;
}

Submission LiveSite::make_job() {
    Submission job{.name = "j" + std::to_string(jobs_made_++), .command = {"train"}, .directory = "/"};
    job.tenant = std::to_string(setting_ == Setting::cells ? 0 : random_.below(20));
    constexpr std::uint32_t kGangs[] = {1, 1, 2, 2, 4, 4, 4, 8};
    job.gpus = setting_ == Setting::cells ? 8 : kGangs[random_.below(std::size(kGangs))];
    const double ideal = job.gpus * 1e8 * (0.1 + random_.uniform());
    job.ideal_by_type["a"] = ideal;
    for (std::size_t type = 1; type < gpu_types_; ++type) {
        job.ideal_by_type[type == 1 ? "b" : "c"] = ideal * (0.2 + 0.8 * random_.uniform());
    }
    const auto dataset = static_cast<std::uint32_t>(random_.below(size_.datasets));
    job.dataset = dataset_name(dataset);
    const double total_bytes = ideal * 3600 * (1 + 20 * random_.uniform());
    job.epochs = total_bytes / static_cast<double>(dataset_bytes_[dataset]);
    if (random_.uniform() < 0.3) {
        job.service = ServiceClass::strict_deadline;
        // Deadlines assume the job is storage bound like all others: either with time to spare, or about as tight as in
        // Chronus's own traces.
        const double alone_s = total_bytes / std::min(ideal, kRemote * job.gpus / (8.0 * size_.nodes));
        const double slack =
            setting_ == Setting::tight_deadlines ? 1.1 + 1.9 * random_.uniform() : 4 + 4 * random_.uniform();
        job.deadline_s = now_s_ + 3600 + alone_s * slack;
    }
    return job;
}

// Reports every node: its datasets with the quotas of the plan in force, filled, and the jobs that run there.
Result<void> LiveSite::report_all() {
    std::vector<std::vector<allocator::JobReport>> jobs(size_.nodes);
    std::vector<std::map<std::uint32_t, allocator::NodeCache>> datasets(size_.nodes);
    for (std::uint32_t n = 0; n < size_.nodes; ++n) {
        for (std::uint32_t k = 0; k < size_.datasets_per_node; ++k) {
            datasets[n].emplace((n * size_.datasets_per_node + k) % size_.datasets, allocator::NodeCache{.node = n});
        }
    }
    const auto& nodes = live_->options().cluster.nodes;
    std::map<std::string_view, std::uint32_t> node_at;
    for (std::uint32_t n = 0; n < nodes.size(); ++n) node_at[nodes[n].name] = n;
    const allocator::ClusterState& planned = cluster_.planned_state();
    std::vector<std::uint32_t> node_of_planned;
    node_of_planned.reserve(planned.nodes.size());
    for (const allocator::ClusterNode& node : planned.nodes) node_of_planned.push_back(node_at.at(node.name));
    for (std::size_t i = 0; i < cluster_.plan().datasets.size(); ++i) {
        const auto dataset = static_cast<std::uint32_t>(std::stoul(planned.datasets[i].name.substr(1)));
        for (const allocator::NodeCache& quota : cluster_.plan().datasets[i].quotas) {
            datasets[node_of_planned[quota.node]][dataset] = quota;
        }
    }
    for (const JobId id : live_->queue().active()) {
        const JobRecord& job = live_->queue().jobs().at(id);
        if (job.phase != Phase::running || !job.held) continue;
        const auto dataset = static_cast<std::uint32_t>(std::stoul(job.asked.dataset.substr(1)));
        const std::uint64_t size = dataset_bytes_[dataset];
        const double ran_s = now_s_ - job.state.first_started_s;
        for (const NamedGpus& share : job.held->gpus) {
            const std::uint32_t n = node_at.at(share.node);
            const auto ranks = static_cast<std::uint32_t>(std::popcount(share.gpus));
            datasets[n].emplace(dataset, allocator::NodeCache{.node = n});
            const double rate = job.asked.ideal_by_type.at("a") * ranks / job.asked.gpus / 2;
            jobs[n].push_back({.name = job.asked.name,
                               .dataset = job.asked.dataset,
                               .ranks = ranks,
                               .bytes = static_cast<std::uint64_t>(rate * ran_s),
                               .busy_s = ranks * ran_s / 2,
                               .demand_bytes_per_second = rate / 4,
                               .unread_bytes = size / 2,
                               .unread_cached_bytes = size / 8,
                               .epoch = 0});
        }
    }
    for (std::uint32_t n = 0; n < size_.nodes; ++n) {
        allocator::NodeReport report{.node = nodes[n].name,
                                     .instance = 1,
                                     .gpus = 8,
                                     .memory_bytes = kMemoryBytes,
                                     .disk_bytes = kDiskBytes,
                                     .disk_read_bytes_per_second = is_slow_node(n) ? 5e7 : 6e9,
                                     .nic_bytes_per_second = is_slow_node(n) ? 1e8 : 12.5e9,
                                     .peer_group = "all",
                                     .peer_endpoint = "http://127.0.0.1:7700"};
        for (const auto& [dataset, quota] : datasets[n]) {
            report.datasets.push_back({.name = dataset_name(dataset),
                                       .size_bytes = dataset_bytes_[dataset],
                                       .quota_memory_bytes = quota.memory_bytes,
                                       .quota_disk_bytes = quota.disk_bytes,
                                       .cached_memory_bytes = quota.memory_bytes,
                                       .cached_disk_bytes = quota.disk_bytes});
        }
        report.jobs = std::move(jobs[n]);
        if (auto taken = cluster_.report(report, now().steady_ns); !taken) return taken;
    }
    return {};
}

}  // namespace larder::bench
