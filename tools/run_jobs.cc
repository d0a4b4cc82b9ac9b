#include "tools/run_jobs.h"

#include <unistd.h>

#include <filesystem>
#include <utility>

#include "scheduler/engines/local_engine.h"
#include "scheduler/live/api.h"
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

Result<std::unique_ptr<scheduler::Engine>> make_engine(const scheduler::LiveConfig& config,
                                                       const scheduler::GpuCluster& cluster,
                                                       const std::string& state_directory) {
    scheduler::LocalEngineOptions options{
        .directory = state_directory + "/jobs",
        .runner = config.runner.empty() ? beside_this_program("larder-runner") : config.runner};
    unsigned first = 0;
    for (const scheduler::GpuNode& node : cluster.nodes) {
        options.first_gpus[node.name] = first;
        first += node.gpus;
    }
    auto engine = scheduler::LocalEngine::open(std::move(options));
    if (!engine) return std::unexpected(engine.error());
    return std::unique_ptr<scheduler::Engine>(std::move(*engine));
}

Result<std::unique_ptr<allocator::Extension>> mount(const scheduler::LiveConfig& config,
                                                    const std::string& state_directory,
                                                    const allocator::ExtensionPlace& place) {
    scheduler::LiveOptions options{.cluster = gpu_cluster_of(config, host_name()),
                                   .storage_aware = !config.storage_blind,
                                   .history_max = config.history,
                                   .interval_s = config.policy_options.interval_s,
                                   .window_intervals = config.policy_options.window_intervals};
    auto tenants = tenants_of(config);
    if (!tenants) return std::unexpected(tenants.error());
    options.tenants = std::move(*tenants);
    auto policy = scheduler::make_policy(config.policy, config.policy_options);
    if (!policy) return std::unexpected(policy.error());
    options.policy = std::move(*policy);
    options.placer = std::make_unique<scheduler::FreePool>(options.cluster);
    if (!config.socket.empty()) options.environment["LARDER_SOCKET"] = config.socket;
    auto engine = make_engine(config, options.cluster, state_directory);
    if (!engine) return std::unexpected(engine.error());
    auto store = scheduler::HistoryStore::open(state_directory + "/queue", options.cluster.gpu_types);
    if (!store) return std::unexpected(store.error());
    return std::make_unique<scheduler::QueueApi>(
        scheduler::QueueApi::Parts{
            .options = std::move(options), .store = std::move(*store), .engine = std::move(*engine)},
        place);
}

}  // namespace

Result<allocator::MakeExtension> run_jobs(const scheduler::LiveConfig& config, const std::string& state_directory) {
    if (!config.runs_jobs()) return allocator::MakeExtension();
    if (state_directory.empty()) {
        return fail(ErrorCode::invalid_argument,
                    "scheduler.gpus: running jobs needs state, a directory to keep what they do in");
    }
    return [config, state_directory](const allocator::ExtensionPlace& place) {
        return mount(config, state_directory, place);
    };
}

}  // namespace larder::tools
