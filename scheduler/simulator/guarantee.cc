#include "scheduler/simulator/guarantee.h"

#include <algorithm>
#include <numeric>

#include "scheduler/cells/cells.h"

namespace larder::scheduler {
namespace {

constexpr double kUnlimited_bytes_per_second = 1e18;
constexpr double kRounding_s = 1e-3;  // rounding errors of times that are sums over months

Result<SimulationOutcome> run(const Workload& workload, const CellConfig& config) {
    const GpuCluster cluster = cluster_of(config);
    std::vector<std::string> tenants;
    tenants.reserve(workload.tenants.size());
    for (const Tenant& tenant : workload.tenants) tenants.push_back(tenant.name);
    const auto cells = Cells::create(config, cluster, tenants);
    if (!cells) return std::unexpected(cells.error());
    const auto policy = make_policy("tenant-fifo", {});
    if (!policy) return std::unexpected(policy.error());
    SimulationOptions options{.cache = {.cache = CacheKind::none, .bandwidth = BandwidthKind::fair},
                              .storage = {.remote_bytes_per_second = kUnlimited_bytes_per_second},
                              .samples = 0};
    return simulate(workload, cluster, **policy, **cells, options);
}

// The tenant's jobs that fit its cells, with their indices in the whole workload.
struct Part {
    Workload workload;
    std::vector<std::size_t> indices;
};

Part part_of(const Workload& workload, std::uint32_t tenant, std::uint32_t gpus) {
    Part part{.workload = {.datasets = workload.datasets, .tenants = workload.tenants}};
    for (std::size_t j = 0; j < workload.jobs.size(); ++j) {
        if (workload.jobs[j].tenant != tenant || workload.jobs[j].gpus > gpus) continue;
        part.workload.jobs.push_back(workload.jobs[j]);
        part.workload.models.push_back(workload.models[j]);
        part.indices.push_back(j);
    }
    return part;
}

}  // namespace

Result<CellConfig> cells_by_weight(std::span<const Tenant> tenants, const GpuGroup& gpus, std::uint32_t gpus_per_node) {
    constexpr std::uint32_t kRackNodes = 4;
    const std::uint32_t rack_gpus = kRackNodes * gpus_per_node;
    const std::uint32_t nodes = gpus.gpus / rack_gpus * kRackNodes;
    if (tenants.size() > nodes) {
        const std::string each =
            tenants.size() == 1 ? "" : " for each of " + std::to_string(tenants.size()) + " tenants";
        return fail(ErrorCode::invalid_argument,
                    std::to_string(gpus.gpus) + " GPUs make " + std::to_string(nodes) + " nodes of " +
                        std::to_string(gpus_per_node) + " in whole racks of " + std::to_string(kRackNodes) +
                        ", too few for a node" + each + ": raise --gpus, or give the cells (--cells)");
    }
    CellConfig config;
    HierarchyConfig& hierarchy = config.hierarchies.emplace_back();
    hierarchy.name = "all";
    hierarchy.gpu_type = gpus.type;
    std::uint32_t cells = gpus_per_node;
    if (gpus_per_node > 2 && gpus_per_node % 2 == 0) {
        hierarchy.levels.push_back({.name = "pair", .of = 2});
        cells /= 2;
    }
    hierarchy.levels.push_back({.name = "node", .of = cells});
    hierarchy.node_level = static_cast<std::uint32_t>(hierarchy.levels.size());
    hierarchy.levels.push_back({.name = "rack", .of = kRackNodes});
    for (std::uint32_t n = 0; n < nodes; ++n) hierarchy.nodes.push_back("node-" + std::to_string(n));
    double weight = 0;
    for (const Tenant& tenant : tenants) weight += tenant.weight;
    std::uint32_t left = nodes;
    for (std::size_t t = 0; t < tenants.size(); ++t) {
        const auto others = static_cast<std::uint32_t>(tenants.size() - t - 1);
        const auto share = static_cast<std::uint32_t>(nodes * tenants[t].weight / weight);
        const std::uint32_t owned = std::clamp(share, 1U, left - others);
        left -= owned;
        config.virtual_clusters.push_back({.name = tenants[t].name,
                                           .cells = {{.hierarchy = 0, .level = hierarchy.node_level, .count = owned}},
                                           .pinned = {}});
    }
    return config;
}

Result<std::vector<TenantGuarantee>> check_guarantee(
    const Workload& workload, const CellConfig& config,
    const std::function<void(std::size_t done, std::size_t all)>& simulated) {
    std::vector<TenantGuarantee> guarantees;
    std::vector<std::uint32_t> owners(workload.tenants.size(), kNoTenant);
    Workload shared{.datasets = workload.datasets, .tenants = workload.tenants};
    std::vector<std::size_t> shared_index(workload.jobs.size());
    for (std::uint32_t t = 0; t < workload.tenants.size(); ++t) {
        const auto cluster =
            std::ranges::find(config.virtual_clusters, workload.tenants[t].name, &VirtualClusterConfig::name);
        if (cluster == config.virtual_clusters.end()) continue;
        owners[t] = static_cast<std::uint32_t>(cluster - config.virtual_clusters.begin());
        const GpuCluster alone = cluster_of(private_config(config, owners[t]));
        std::uint32_t gpus = 0;
        for (const GpuNode& node : alone.nodes) gpus += node.gpus;
        guarantees.push_back({.tenant = workload.tenants[t].name, .gpus = gpus});
    }
    std::vector<std::uint32_t> gpus_of(workload.tenants.size());
    for (std::uint32_t t = 0, g = 0; t < owners.size(); ++t) {
        if (owners[t] != kNoTenant) gpus_of[t] = guarantees[g++].gpus;
    }
    for (std::size_t j = 0; j < workload.jobs.size(); ++j) {
        const JobSpec& job = workload.jobs[j];
        if (owners[job.tenant] == kNoTenant || job.gpus > gpus_of[job.tenant]) continue;
        shared_index[j] = shared.jobs.size();
        shared.jobs.push_back(job);
        shared.models.push_back(workload.models[j]);
    }
    const auto shared_outcome = run(shared, config);
    if (!shared_outcome) return std::unexpected(shared_outcome.error().within("shared"));
    if (simulated) simulated(1, 1 + guarantees.size());

    for (std::uint32_t t = 0, g = 0; t < owners.size(); ++t) {
        if (owners[t] == kNoTenant) continue;
        TenantGuarantee& guarantee = guarantees[g++];
        const Part part = part_of(workload, t, guarantee.gpus);
        const auto alone = run(part.workload, private_config(config, owners[t]));
        if (!alone) return std::unexpected(alone.error().within(guarantee.tenant + " alone"));
        if (simulated) simulated(1 + g, 1 + guarantees.size());
        guarantee.jobs = part.indices.size();
        for (const JobSpec& job : workload.jobs) guarantee.too_large += job.tenant == t && job.gpus > guarantee.gpus;
        std::vector<const JobOutcome*> shared_jobs;
        shared_jobs.reserve(part.indices.size());
        for (const std::size_t index : part.indices) shared_jobs.push_back(&shared_outcome->jobs[shared_index[index]]);
        for (std::size_t i = 0; i < part.indices.size(); ++i) {
            const double submit_s = part.workload.jobs[i].submit_s;
            const double shared_s = shared_jobs[i]->start_s;
            const double alone_s = alone->jobs[i].start_s;
            guarantee.waited_shared_s += (shared_s - submit_s) / static_cast<double>(guarantee.jobs);
            guarantee.waited_alone_s += (alone_s - submit_s) / static_cast<double>(guarantee.jobs);
            if (shared_s <= alone_s + kRounding_s) continue;
            bool behind_earlier = false;
            for (std::size_t k = 0; k < i && !behind_earlier; ++k) {
                const bool earlier = shared_jobs[k]->start_s < alone->jobs[k].start_s - kRounding_s;
                behind_earlier = earlier && shared_jobs[k]->finish_s > alone_s;
            }
            ++(behind_earlier ? guarantee.behind_earlier : guarantee.later);
        }
    }
    return guarantees;
}

}  // namespace larder::scheduler
