#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

#include "base/out_of_memory.h"
#include "base/server/accounts.h"
#include "base/server/logging.h"
#include "cache/control/daemon_config.h"
#include "cache/control/node.h"
#include "tools/cli/context.h"
#include "tools/cli/daemon_flags.h"
#include "tools/cli/describe_program.h"
#include "tools/cli/run_daemon.h"

namespace {

using larder::Result;
using larder::cache::DaemonConfig;

int fail(const larder::Error& error) {
    std::fprintf(stderr, "larderd: %s\n", error.message.c_str());
    return error.code == larder::ErrorCode::invalid_argument ? larder::cli::kUsage : larder::cli::kFailed;
}

int run(int argc, char** argv) {
    CLI::App app("larderd: the node daemon of Larder");
    app.name("larderd");
    app.footer(
        "SIGTERM and Ctrl-C drain and stop the daemon; SIGHUP reloads rates, quotas and log level from the "
        "config.\n"
        "Exit codes: 0 stopped as asked; 1 failed; 2 wrong usage or config.");
    std::string path;
    bool check = false;
    app.add_option("--config", path, "The TOML file; tools/larderd.example.toml shows every key");
    app.add_flag("--check", check, "Check the config, print what is wrong with it, and exit");
    app.set_version_flag("--version", "larderd " LARDER_VERSION);
    larder::cli::DaemonFlags flags;
    flags.add_to(app, larder::cache::config_keys());
    if (const auto described = larder::cli::describe_program(app, {.line = "larderd", .man_section = 8}, argc, argv)) {
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
    const auto load = [path, overrides = *overrides]() -> Result<DaemonConfig> {
        return larder::cache::load_config(path, overrides);
    };
    const auto config = load();
    if (!config) return fail(config.error());
    if (check) {
        const auto fits = larder::cache::check_memory(*config, larder::machine_memory());
        if (!fits) return fail(fits.error());
        const auto declared = larder::cache::check_config_datasets(*config);
        if (!declared) return fail(declared.error());
        std::puts("the config is good");
        return larder::cli::kDone;
    }
    const auto ran = larder::cli::run_daemon({.config = *config, .reload = load, .started = {}, .ended = {}});
    if (ran) return larder::cli::kDone;
    // main() prints the error on stderr, where the log goes unless it has a file.
    if (!config->log_file.empty()) larder::log_error("cannot start", {{"error", ran.error().message}});
    return fail(ran.error());
}

}  // namespace

// Before the initialisation of libraries, which allocates too.
[[gnu::constructor(101)]] static void set_up() {
    larder::exit_when_out_of_memory("larderd");
}

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "larderd: %s\n", error.what());
        return larder::cli::kFailed;
    }
}
