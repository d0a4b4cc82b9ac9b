#include "scheduler/simulator/reported_plans.h"

#include <algorithm>
#include <cmath>

#include "base/assert.h"

namespace larder::scheduler {
namespace {

constexpr double kCheckEvery_s = 0.1;
constexpr double kReportEvery_s = 1;
constexpr double kReportSoon_s = 0.2;

std::int64_t nanoseconds(double seconds) {
    return std::llround(seconds * 1e9);
}

std::uint64_t to_bytes(double value) {
    return static_cast<std::uint64_t>(std::max(0.0, value));
}

std::string job_name(const SimulatedJob& job) {
    return std::to_string(job.reader.job);
}

std::string dataset_name(std::uint32_t dataset) {
    return std::to_string(dataset);
}

allocator::ClusterOptions cluster_options(const SimulationOptions& options) {
    allocator::ClusterOptions cluster;
    cluster.remote_bytes_per_second = options.storage.remote_bytes_per_second;
    cluster.floor_bytes_per_second = options.report_floor_bytes_per_second;
    cluster.lease_ns = nanoseconds(options.report_lease_s);
    cluster.objective.kind = options.cache.objective;
    return cluster;
}

// The part of a job on one node: its reader, its fraction of the job's reads, and its GPUs there.
struct JobOnNode {
    SimulatedReader* reader = nullptr;
    double fraction = 0;
    std::uint32_t gpus = 0;
};

std::optional<JobOnNode> part_on(SimulatedJob& job, std::uint32_t node) {
    std::uint32_t gpus = 0;
    for (const NodeGpus& share : job.state.placement) gpus += share.node == node ? share.count() : 0;
    for (const ReaderPart& part : job.parts) {
        if (part.store->node == node) {
            return JobOnNode{.reader = part.node_reader == nullptr ? &job.reader : part.node_reader.get(),
                             .fraction = part.fraction,
                             .gpus = gpus};
        }
        if (part.store->node != kAllNodes || gpus == 0) continue;
        return JobOnNode{.reader = &job.reader,
                         .fraction = gpus / static_cast<double>(gpu_count(job.state.placement)),
                         .gpus = gpus};
    }
    return std::nullopt;
}

}  // namespace

ReportedPlans::ReportedPlans(const SimulationOptions& options, std::span<const DatasetState> datasets,
                             const GpuCluster& cluster)
    : datasets_(datasets),
      nodes_(cluster),
      node_cache_bytes_(options.storage.cache_bytes / static_cast<double>(cluster.nodes.size())),
      node_disk_bytes_per_second_(options.node_disk_bytes_per_second),
      node_nic_bytes_per_second_(options.node_nic_bytes_per_second),
      epochs_known_(options.cache.epochs_known),
      pools_caches_(!options.cache.own_caches),
      cluster_(cluster_options(options)),
      agents_(cluster.nodes.size()) {
    LARDER_ASSERT(options.report_ages_s.empty() || options.report_ages_s.size() == agents_.size());
    const auto agents = static_cast<double>(agents_.size());
    for (std::size_t n = 0; n < agents_.size(); ++n) {
        const double phase = (static_cast<double>(n) + 0.5) / agents;
        agents_[n] = {.check_phase_s = kCheckEvery_s * phase, .reported_s = -kReportEvery_s * phase, .next_s = kNever};
        if (options.report_ages_s.empty()) continue;
        agents_[n].check_phase_s = agents_[n].reported_s = -options.report_ages_s[n];
    }
}

void ReportedPlans::report_after(Agent& agent, double period_s, double now_s) {
    if (agent.silent) return;
    const double from_s = std::max(now_s, agent.reported_s + period_s);
    constexpr double kRounding = 1e-6;
    agent.next_s =
        agent.check_phase_s + std::ceil((from_s - agent.check_phase_s) / kCheckEvery_s - kRounding) * kCheckEvery_s;
}

void ReportedPlans::set_reports(std::uint32_t node, bool reports, double now_s,
                                std::span<const std::unique_ptr<Store>> stores) {
    Agent& agent = agents_[node];
    for (const auto& store : stores) {
        if (reports || store->node != kAllNodes) continue;
        const double kept = 1 - part_of(*store, node);
        store->cached_bytes *= kept;
        for (SimulatedReader* reader : store->readers) reader->unread_cached_bytes *= kept;
    }
    agent.silent = !reports;
    agent.next_s = kNever;
    if (!reports) agent.quotas.clear();
    if (reports && any_started_) report_after(agent, kReportSoon_s, now_s);
}

void ReportedPlans::note_start(const SimulatedJob& job, double now_s) {
    if (job.reads_nothing()) return;
    for (const NodeGpus& share : job.state.placement) report_after(agents_[share.node], kReportSoon_s, now_s);
    if (std::exchange(any_started_, true)) return;
    for (Agent& agent : agents_) {
        if (agent.next_s == kNever) report_after(agent, kReportEvery_s, now_s);
    }
}

double ReportedPlans::next_s() const {
    double next_s = kNever;
    for (const Agent& agent : agents_) next_s = std::min(next_s, agent.next_s);
    return next_s;
}

void ReportedPlans::update_turns(std::span<SimulatedJob* const> running, std::span<SimulatedJob* const> waiting) {
    std::vector<allocator::Turn> turns;
    const auto add_unreported = [&](const SimulatedJob& job, const Placement& on) {
        if (job.reads_nothing()) return;
        const double size = datasets_[job.state.spec->dataset].size_bytes;
        allocator::Turn turn{
            .job = job_name(job),
            .time_share = job.state.time_share,
            .dataset = dataset_name(job.state.spec->dataset),
            .epochs = epochs_known_ ? std::max(1.0, job.reader.remaining_bytes / size) : allocator::kUnlimited,
            .ideal_bytes_per_second = told_ideal(job.reader),
            .weight = job.reader.weight};
        for (const NodeGpus& share : on) turn.ran_on.emplace_back(nodes_.nodes[share.node].name, share.count());
        turns.push_back(std::move(turn));
    };
    for (const SimulatedJob* job : running) {
        if (job->paused) {
            add_unreported(*job, job->state.placement);
        } else {
            turns.push_back({.job = job_name(*job), .time_share = job->state.time_share});
        }
    }
    for (const SimulatedJob* job : waiting) add_unreported(*job, job->last_placement);
    cluster_.set_turns(std::move(turns));
}

Result<void> ReportedPlans::report(double now_s, std::span<SimulatedJob* const> running,
                                   std::span<SimulatedJob* const> waiting,
                                   std::span<const std::unique_ptr<Store>> stores) {
    update_turns(running, waiting);
    for (std::uint32_t n = 0; n < agents_.size(); ++n) {
        Agent& agent = agents_[n];
        if (agent.next_s > now_s) continue;
        agent.reported_s = now_s;
        const std::int64_t now_ns = nanoseconds(now_s);
        // A job declares as its ideal rate the rate that nodes will measure.
        for (SimulatedJob* job : running) {
            if (cluster_.registered(job_name(*job)) != nullptr || !part_on(*job, n)) continue;
            auto registered = cluster_.register_job({.name = job_name(*job),
                                                     .weight = job->reader.weight,
                                                     .ideal_bytes_per_second = told_ideal(job->reader)});
            if (!registered) return registered;
        }
        if (auto taken = cluster_.report(report_of(n, running, stores), now_ns); !taken) return taken;
        if (auto planned = cluster_.replan(now_ns); !planned) return std::unexpected(planned.error());
        const auto plan = cluster_.plan_for(nodes_.nodes[n].name, now_ns);
        if (!plan) return std::unexpected(plan.error());
        apply(n, *plan, now_s, running, stores);
    }
    return {};
}

double ReportedPlans::part_of(const Store& store, std::uint32_t node) const {
    if (store.node != kAllNodes) return store.node == node ? 1 : 0;
    const auto quota = agents_[node].quotas.find(store.dataset);
    return quota == agents_[node].quotas.end() || !(store.quota_bytes > 0) ? 0 : quota->second / store.quota_bytes;
}

void ReportedPlans::set_quota(Store& store, std::uint32_t node, double quota_bytes) {
    agents_[node].quotas[store.dataset] = quota_bytes;
    store.quota_bytes = quota_bytes;
    if (store.node == kAllNodes) {
        store.quota_bytes = 0;
        for (const Agent& agent : agents_) {
            const auto quota = agent.quotas.find(store.dataset);
            if (quota != agent.quotas.end()) store.quota_bytes += quota->second;
        }
    }
    cut_to_quota(store);
}

double ReportedPlans::leased_bandwidth(const SimulatedJob& job) const {
    const std::string name = job_name(job);
    double bandwidth = 0;
    for (const NodeGpus& share : job.state.placement) {
        const std::map<std::string, double>& rates = agents_[share.node].rates;
        const auto rate = rates.find(name);
        if (rate != rates.end()) bandwidth += rate->second;
    }
    return bandwidth;
}

allocator::NodeReport ReportedPlans::report_of(std::uint32_t node, std::span<SimulatedJob* const> running,
                                               std::span<const std::unique_ptr<Store>> stores) const {
    allocator::NodeReport report{.node = nodes_.nodes[node].name,
                                 .instance = 1,
                                 .lease_applied = agents_[node].lease_applied,
                                 .gpus = nodes_.nodes[node].gpus,
                                 .disk_bytes = to_bytes(node_cache_bytes_),
                                 .disk_read_bytes_per_second = node_disk_bytes_per_second_,
                                 .nic_bytes_per_second = node_nic_bytes_per_second_};
    if (pools_caches_) {
        report.peer_group = "all";
        report.peer_endpoint = "http://" + report.node + ":1";
    }
    for (const auto& store : stores) {
        if (store->node != node && store->node != kAllNodes) continue;
        const double part = part_of(*store, node);
        report.datasets.push_back({.name = dataset_name(store->dataset),
                                   .size_bytes = to_bytes(store->size_bytes),
                                   .quota_disk_bytes = to_bytes(store->quota_bytes * part),
                                   .cached_disk_bytes = to_bytes(store->cached_bytes * part)});
    }
    for (SimulatedJob* job : running) {
        const auto on_node = part_on(*job, node);
        if (!on_node || job->paused) continue;
        const double done_bytes = job->state.spec->total_bytes - job->reader.remaining_bytes;
        // In a pool, the reader is that of the whole job.
        const double part = pools_caches_ ? on_node->fraction : 1;
        const std::uint64_t unread = to_bytes(on_node->reader->unread_bytes * part);
        report.jobs.push_back(
            {.name = job_name(*job),
             .dataset = dataset_name(job->state.spec->dataset),
             .ranks = on_node->gpus,
             .bytes = to_bytes(done_bytes * on_node->fraction),
             .busy_s = on_node->gpus * done_bytes / told_ideal(job->reader),
             .demand_bytes_per_second = job->reader.ideal * on_node->fraction * (1 - rest_hit_ratio(*on_node->reader)),
             .unread_bytes = unread,
             .unread_cached_bytes = std::min(unread, to_bytes(on_node->reader->unread_cached_bytes * part))});
    }
    return report;
}

void ReportedPlans::apply(std::uint32_t node, const allocator::NodePlan& plan, double now_s,
                          std::span<SimulatedJob* const> running, std::span<const std::unique_ptr<Store>> stores) {
    for (const auto& store : stores) {
        if (store->node != node && store->node != kAllNodes) continue;
        const auto quota = std::ranges::find(plan.quotas, dataset_name(store->dataset), &allocator::DatasetQuota::name);
        set_quota(*store, node,
                  quota == plan.quotas.end() ? 0 : std::min(store->size_bytes, static_cast<double>(quota->disk_bytes)));
    }
    Agent& agent = agents_[node];
    std::map<std::string, double> rates;
    for (const allocator::LeasedRate& rate : plan.lease.rates) rates[rate.job] = rate.bytes_per_second;
    constexpr double kGivenUpPartMin = 0.01;
    const bool gives_up = std::ranges::any_of(agent.rates, [&](const auto& rate) {
        const auto new_rate = rates.find(rate.first);
        return new_rate == rates.end() || new_rate->second < rate.second * (1 - kGivenUpPartMin);
    });
    agent.rates = std::move(rates);
    agent.lease_applied = plan.lease.number;
    report_after(agent, gives_up || plan.lease.cut ? kReportSoon_s : kReportEvery_s, now_s);
    for (SimulatedJob* job : running) {
        const auto on_node = part_on(*job, node);
        if (!on_node) continue;
        const auto rate = agent.rates.find(job_name(*job));
        on_node->reader->bandwidth = rate == agent.rates.end() ? 0 : rate->second;
        job->reader.bandwidth = leased_bandwidth(*job);
    }
}

}  // namespace larder::scheduler
