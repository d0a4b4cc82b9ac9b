#include "tools/run_jobs.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <span>
#include <string_view>
#include <utility>

#include "base/server/logging.h"
#include "scheduler/cells/cell_config_toml.h"
#include "scheduler/cells/cells.h"
#include "scheduler/engines/agent/agent_api.h"
#include "scheduler/engines/agent/agent_engine.h"
#include "scheduler/engines/control_group.h"
#include "scheduler/engines/local_engine.h"
#include "scheduler/live/queue_api.h"
#include "scheduler/placement/free_pool.h"

namespace larder::tools {
namespace {

namespace fs = std::filesystem;

std::string host_name() {
    char name[256] = "localhost";
    ::gethostname(name, sizeof name - 1);
    return name;
}

std::string beside_this_program(const char* program) {
    std::error_code error;
    return fs::read_symlink("/proc/self/exe", error).parent_path() / program;
}

// systemd names each run of a service in $INVOCATION_ID, and every sandbox of an unprivileged service sets
// no_new_privs.
bool is_sandboxed_service() {
    return std::getenv("INVOCATION_ID") != nullptr && ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1;
}

Result<std::unique_ptr<scheduler::Engine>> make_local_engine(const scheduler::LiveConfig& config,
                                                             const scheduler::GpuCluster& cluster,
                                                             const std::string& jobs_directory,
                                                             const scheduler::HistoryStore& store) {
    scheduler::LocalEngineOptions options{
        .directory = jobs_directory,
        .queue = store.identity(),
        .first = store.first_number(),
        .runner = config.runner.empty() ? beside_this_program("larder-runner") : config.runner};
    std::map<std::string_view, unsigned> gpus_of_machine;
    for (const scheduler::GpuNode& node : cluster.nodes) {
        unsigned& gpus = gpus_of_machine[node.name];
        gpus = std::max(gpus, node.first_gpu + node.gpus);
    }
    unsigned first = 0;
    for (const scheduler::GpuNode& node : cluster.nodes) {
        if (options.first_gpus.emplace(node.name, first).second) first += gpus_of_machine[node.name];
    }
    if (is_sandboxed_service()) {
        log_warn(
            "jobs inherit the sandbox of this service, in which GPUs may not work: install the drop-in "
            "larder-allocator-jobs.conf, see \"As a systemd service\" in docs/policies.md");
    }
    if (auto parent = scheduler::find_group_parent()) {
        options.group_parent = std::move(*parent);
    } else {
        const std::string_view message =
            "cannot give attempts of jobs control groups: if a runner is killed, processes that its job detached go on";
        log_warn(message, {{"why", parent.error().message}});
        options.warning = std::string(message) + " (" + parent.error().message + ")";
    }
    auto engine = scheduler::LocalEngine::open(std::move(options));
    if (!engine) return std::unexpected(engine.error());
    return std::unique_ptr<scheduler::Engine>(std::move(*engine));
}

// Tells this process's sessions with agents from those of others.
std::string random_name() {
    std::random_device random;
    return std::to_string(random()) + std::to_string(random());
}

Result<void> make_engine(scheduler::QueueApi::Parts& parts, const scheduler::LiveConfig& config,
                         const std::string& jobs_directory, const Clock& clock) {
    if (!config.has_agent) {
        auto engine = make_local_engine(config, parts.options.cluster, jobs_directory, *parts.store);
        if (!engine) return std::unexpected(engine.error());
        parts.engine = std::move(*engine);
        return {};
    }
    scheduler::AgentEngineOptions options{.nodes = {},
                                          .agent_has_nodes = config.agent_has_nodes,
                                          .queue = parts.store->identity(),
                                          .instance = random_name(),
                                          .output_url = config.output_url};
    options.nodes.reserve(parts.options.cluster.nodes.size());
    for (const scheduler::GpuNode& node : parts.options.cluster.nodes) options.nodes.push_back(node.name);
    for (const auto& [name, node] : parts.store->found().nodes) {
        if (config.agent_has_nodes && node) options.nodes.push_back(name);
    }
    auto engine = std::make_unique<scheduler::AgentEngine>(std::move(options));
    parts.engine_api = std::make_unique<scheduler::AgentApi>(*engine, clock);
    parts.engine = std::move(engine);
    return {};
}

Result<scheduler::CellConfig> load_cells(const scheduler::LiveConfig& config,
                                         std::span<const scheduler::Tenant> tenants) {
    auto cells = scheduler::load_cell_config(config.cells);
    if (!cells) return cells;
    for (const scheduler::VirtualClusterConfig& owner : cells->virtual_clusters) {
        if (std::ranges::find(tenants, owner.name, &scheduler::Tenant::name) != tenants.end()) continue;
        std::string known;
        for (const scheduler::Tenant& tenant : tenants) known += (known.empty() ? "" : ", ") + tenant.name;
        return fail(ErrorCode::invalid_argument, config.cells + ": virtual_cluster \"" + owner.name +
                                                     "\" is not a tenant: name one of the tenants, " + known +
                                                     ", or add [scheduler.tenant." + owner.name + "]");
    }
    return cells;
}

Result<void> check_cells(const scheduler::LiveConfig& config) {
    if (config.cells.empty()) return {};
    const auto tenants = tenants_of(config);
    if (!tenants) return std::unexpected(tenants.error());
    const auto cells = load_cells(config, *tenants);
    if (!cells) return std::unexpected(cells.error());
    return {};
}

Result<std::unique_ptr<scheduler::Placer>> make_placer(const scheduler::LiveConfig& config,
                                                       scheduler::LiveOptions& options) {
    if (config.cells.empty()) return std::make_unique<scheduler::FreePool>(options.cluster);
    const auto cells = load_cells(config, options.tenants);
    if (!cells) return std::unexpected(cells.error());
    options.cluster = cluster_of(*cells);
    std::vector<std::string> tenants;
    tenants.reserve(options.tenants.size());
    for (const scheduler::Tenant& tenant : options.tenants) tenants.push_back(tenant.name);
    auto placer = scheduler::Cells::create(*cells, options.cluster, tenants);
    if (!placer) return std::unexpected(placer.error());
    return std::unique_ptr<scheduler::Placer>(std::move(*placer));
}

Result<std::unique_ptr<allocator::Extension>> mount(const scheduler::LiveConfig& config, const std::string& directory,
                                                    const allocator::ExtensionContext& place) {
    scheduler::LiveOptions options{.cluster = gpu_cluster_of(config, host_name()),
                                   .gpu_type = config.gpu_type,
                                   .storage_aware = !config.storage_blind,
                                   .history_max = config.history,
                                   .window = config.policy_options.window()};
    auto tenants = tenants_of(config);
    if (!tenants) return std::unexpected(tenants.error());
    options.tenants = std::move(*tenants);
    options.submit_rules = submit_rules_of(config);
    // An agent runs jobs as users whom this process does not know.
    if (!config.has_agent) options.own_user = ::geteuid();
    options.start_timeout_s = config.start_timeout_s;
    options.engine_takes_parameters = config.has_agent;
    auto policy = scheduler::make_policy(config.policy, config.policy_options);
    if (!policy) return std::unexpected(policy.error());
    options.policy = std::move(*policy);
    auto placer = make_placer(config, options);
    if (!placer) return std::unexpected(placer.error());
    options.placer = std::move(*placer);
    if (!config.socket.empty()) options.environment["LARDER_SOCKET"] = config.socket;
    const std::string jobs_directory = directory + "/jobs";
    auto store = scheduler::HistoryStore::open({.directory = directory,
                                                .shared_rows = place.shared_rows,
                                                .gpu_types = options.cluster.gpu_types,
                                                .number_seen = scheduler::highest_job_number(jobs_directory)});
    if (!store) return std::unexpected(store.error());
    scheduler::QueueApi::Parts parts{
        .options = std::move(options), .store = std::move(*store), .engine = nullptr, .engine_api = nullptr};
    if (auto made = make_engine(parts, config, jobs_directory, place.clock); !made)
        return std::unexpected(made.error());
    return std::make_unique<scheduler::QueueApi>(std::move(parts), place);
}

}  // namespace

Result<allocator::MakeExtension> make_job_extension(const scheduler::LiveConfig& config,
                                                    const std::string& state_directory) {
    if (!config.runs_jobs()) return allocator::MakeExtension();
    const std::string given = config.directory.empty() ? state_directory : config.directory;
    if (given.empty()) {
        return fail(ErrorCode::invalid_argument,
                    "running jobs needs a directory for the queue's record and the jobs' files: set "
                    "scheduler.directory or state");
    }
    // Users read the paths of outputs from other directories than this one.
    std::error_code error;
    const std::string directory = fs::absolute(given, error).lexically_normal();
    if (error) return fail_errno(error.value(), "find the directory " + given);
    if (auto checked = check_cells(config); !checked) return std::unexpected(checked.error());
    return [config, directory](const allocator::ExtensionContext& place) { return mount(config, directory, place); };
}

}  // namespace larder::tools
