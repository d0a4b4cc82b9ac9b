// larder-allocator: gives the cluster's cache and remote bandwidth to its jobs.

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <string>

#include "allocator/service/config.h"
#include "allocator/service/service.h"
#include "base/heap.h"
#include "base/server/logging.h"
#include "base/server/systemd.h"
#include "tools/cli/context.h"
#include "tools/cli/daemon_flags.h"

namespace {

using larder::Result;
using larder::allocator::Config;

int fail(const larder::Error& error) {
    std::fprintf(stderr, "larder-allocator: %s\n", error.message.c_str());
    return error.code == larder::ErrorCode::invalid_argument ? larder::cli::kUsage : larder::cli::kFailed;
}

Result<void> serve(const Config& config, const std::function<Result<Config>()>& load) {
    const auto level = larder::parse_log_level(config.log_level);
    if (!level) return std::unexpected(level.error());
    if (auto logging = larder::start_logging({*level, config.log_file}); !logging) return logging;
    larder::keep_freed_memory();
    auto served = larder::allocator::serve({.config = config,
                                            .reload = load,
                                            .started = [](const auto&) { larder::tell_systemd("READY=1"); },
                                            .stopping = [] { larder::tell_systemd("STOPPING=1"); }});
    // The log may be a file nobody looks at while a start fails.
    if (!served) larder::log_error("cannot serve", {{"error", served.error().message}});
    larder::stop_logging();
    return served;
}

int run(int argc, char** argv) {
    CLI::App app("larder-allocator: gives the cluster's cache and remote bandwidth to its jobs");
    app.name("larder-allocator");
    app.footer(
        "SIGTERM and Ctrl-C end it; SIGHUP takes log level, tokens and certificates from the config anew.\n"
        "Exit codes: 0 ended as asked; 1 failed; 2 wrong usage or config.");
    std::string path;
    bool check = false;
    app.add_option("--config", path, "The TOML file; tools/larder-allocator.example.toml shows every key");
    app.add_flag("--check", check, "Read the config, say what is wrong with it, and end");
    app.set_version_flag("--version", "larder-allocator " LARDER_VERSION);
    larder::cli::DaemonFlags flags;
    flags.add_to(app, larder::allocator::config_keys());
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? larder::cli::kDone : larder::cli::kUsage;
    }
    const auto overrides = flags.overrides(app);
    if (!overrides) return fail(overrides.error());
    const auto load = [&]() -> Result<Config> { return larder::allocator::load_config(path, *overrides); };
    const auto config = load();
    if (!config) return fail(config.error());
    if (check) {
        std::puts("the config is good");
        return larder::cli::kDone;
    }
    const auto served = serve(*config, load);
    return served ? static_cast<int>(larder::cli::kDone) : fail(served.error());
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "larder-allocator: %s\n", error.what());
        return larder::cli::kFailed;
    }
}
