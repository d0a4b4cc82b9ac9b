// larder-allocator: assigns the cluster's cache and remote bandwidth to its jobs, and runs submitted jobs.

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "allocator/service/allocator_config.h"
#include "allocator/service/leadership.h"
#include "allocator/service/service.h"
#include "allocator/service/stored_state.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/out_of_memory.h"
#include "base/server/accounts.h"
#include "base/server/etcd_move.h"
#include "base/server/logging.h"
#include "base/server/systemd.h"
#include "scheduler/live/history_store.h"
#include "tools/cli/context.h"
#include "tools/cli/daemon_flags.h"
#include "tools/cli/describe_program.h"
#include "tools/run_jobs.h"

namespace {

using larder::Result;
using larder::allocator::AllocatorConfig;

int fail(const larder::Error& error) {
    std::fprintf(stderr, "larder-allocator: %s\n", error.message.c_str());
    return error.code == larder::ErrorCode::invalid_argument ? larder::cli::kUsage : larder::cli::kFailed;
}

struct LoadedConfigs {
    AllocatorConfig config;
    larder::scheduler::LiveConfig jobs;
};

Result<LoadedConfigs> load_configs(const std::string& path, const std::vector<larder::ConfigOverride>& overrides) {
    const auto keys = larder::scheduler::live_config_keys();
    larder::allocator::OthersConfig others{.keys = keys, .settings = {}, .empty_tables = {}};
    auto config = larder::allocator::load_config(path, overrides, &others);
    if (!config) return std::unexpected(config.error());
    auto jobs = larder::scheduler::read_live_config(others.settings, others.empty_tables);
    if (!jobs) return std::unexpected(jobs.error());
    if (auto runs = larder::tools::make_job_extension(*jobs, config->state_directory); !runs) {
        return std::unexpected(runs.error());
    }
    if (jobs->runs_jobs() && !jobs->has_agent && !config->etcd.options.endpoints.empty()) {
        return larder::config_error(path.empty() ? "flags" : path,
                                    "etcd.endpoints needs scheduler.engine = \"agent\": jobs of the local engine run "
                                    "on one allocator's machine, where no other could follow them");
    }
    if (jobs->runs_jobs() && !config->objective_is_set) {
        config->cluster.objective.kind = larder::scheduler::objective_of(jobs->policy);
    }
    return LoadedConfigs{std::move(*config), std::move(*jobs)};
}

Result<void> serve(const LoadedConfigs& loaded, const std::function<Result<AllocatorConfig>()>& load) {
    const AllocatorConfig& config = loaded.config;
    const auto level = larder::parse_log_level(config.log_level);
    if (!level) return std::unexpected(level.error());
    if (auto logging = larder::start_logging({*level, config.log_file}); !logging) return logging;
    larder::keep_freed_memory();
    auto jobs = larder::tools::make_job_extension(loaded.jobs, config.state_directory);
    if (!jobs) return std::unexpected(jobs.error());
    auto served = larder::allocator::serve({.config = config,
                                            .extend = std::move(*jobs),
                                            .reload = load,
                                            .started = [](const auto&) { larder::tell_systemd("READY=1"); },
                                            .standing_by = [] { larder::tell_systemd("READY=1"); },
                                            .stopping = [] { larder::tell_systemd("STOPPING=1"); }});
    // main() prints the error on stderr, where the log goes unless it has a file.
    if (!served && !config.log_file.empty()) larder::log_error("cannot serve", {{"error", served.error().message}});
    larder::stop_logging();
    return served;
}

Result<void> move_state(const LoadedConfigs& loaded) {
    const AllocatorConfig& config = loaded.config;
    if (config.etcd.options.endpoints.empty() || config.state_directory.empty()) {
        return larder::fail(larder::ErrorCode::invalid_argument,
                            "--move-state-to-etcd needs state, the directory to move, and etcd.endpoints");
    }
    auto state = larder::allocator::read_state_to_move(config.state_directory, config.cluster.lease_ns,
                                                       larder::SteadyClock().now_ns());
    if (!state) return std::unexpected(state.error());
    const std::string& given = loaded.jobs.directory;
    auto queue = larder::scheduler::HistoryStore::read_to_move(given.empty() ? config.state_directory : given);
    if (!queue) return std::unexpected(queue.error());
    std::vector<larder::MovedRows> stores{std::move(state->settings)};
    if (queue->queue) stores.push_back(std::move(*queue->queue));
    const std::string where = config.etcd.options.prefix + " of etcd";
    const auto moved = larder::move_rows_to_etcd(config.etcd.options, larder::allocator::kLeaderKey, stores, [&] {
        return larder::allocator::mark_as_moved(config.state_directory, where);
    });
    if (!moved) return std::unexpected(moved.error());
    std::printf("moved %zu rows to %s, and read them back\n", *moved, where.c_str());
    return {};
}

int run(int argc, char** argv) {
    CLI::App app(
        "larder-allocator: divides the cluster's cache and remote bandwidth among its jobs, and runs submitted jobs");
    app.name("larder-allocator");
    app.footer(
        "SIGTERM and Ctrl-C stop the allocator; SIGHUP reloads log level, roles, tokens and certificates from "
        "the config.\n"
        "Exit codes: 0 stopped as asked; 1 failed; 2 wrong usage or config.");
    std::string path;
    bool check = false;
    app.add_option("--config", path, "The TOML file; tools/larder-allocator.example.toml shows every key");
    app.add_flag("--check", check, "Check the config, print what is wrong with it, and exit");
    bool moves_state = false;
    app.add_flag("--move-state-to-etcd", moves_state,
                 "Copy the state and the queue of an allocator that was alone to etcd, and exit");
    app.set_version_flag("--version", "larder-allocator " LARDER_VERSION);
    larder::cli::DaemonFlags flags;
    auto keys = larder::allocator::config_keys();
    std::ranges::copy(larder::scheduler::live_config_keys(), std::back_inserter(keys));
    flags.add_to(app, keys);
    if (const auto described =
            larder::cli::describe_program(app, {.line = "larder-allocator", .man_section = 8}, argc, argv)) {
        return *described;
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? larder::cli::kDone : larder::cli::kUsage;
    }
    if (const auto loaded = larder::load_name_service(); !loaded) return fail(loaded.error());
    const auto overrides = flags.overrides(app);
    if (!overrides) return fail(overrides.error());
    const auto loaded = load_configs(path, *overrides);
    if (!loaded) return fail(loaded.error());
    const auto load = [path, overrides = *overrides]() -> Result<AllocatorConfig> {
        auto reloaded = load_configs(path, overrides);
        if (!reloaded) return std::unexpected(reloaded.error());
        return std::move(reloaded->config);
    };
    if (check) {
        std::puts("the config is good");
        return larder::cli::kDone;
    }
    const auto served = moves_state ? move_state(*loaded) : serve(*loaded, load);
    return served ? static_cast<int>(larder::cli::kDone) : fail(served.error());
}

}  // namespace

// Before the initialisation of libraries, which allocates too.
[[gnu::constructor(101)]] static void set_up() {
    larder::exit_when_out_of_memory("larder-allocator");
}

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "larder-allocator: %s\n", error.what());
        return larder::cli::kFailed;
    }
}
