#include <CLI/CLI.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "cache/control/config.h"
#include "tools/cli/context.h"
#include "tools/simulate/commands.h"
#ifdef LARDER_WITH_BENCH
#include "bench/bench.h"
#endif

namespace {

using larder::cli::Context;

constexpr const char* kFooter =
    "Exit codes: 0 done; 1 failed; 2 wrong usage; 3 no daemon answers; 4 not found; 5 refused: no permission, or there "
    "already.";

std::string default_admin_socket() {
    const char* named = std::getenv("LARDER_ADMIN_SOCKET");
    if (named != nullptr && *named != '\0') return named;
    return larder::cache::default_state_directory() + "/admin.sock";
}

int run(int argc, char** argv) {
    Context context;
    context.admin_socket = default_admin_socket();
    CLI::App app("larder: keeps training jobs fed from a cache of remote data");
    app.name("larder");
    app.set_version_flag("--version", "larder " LARDER_VERSION);
    app.footer(kFooter);
    app.require_subcommand(1);
    app.fallthrough();
    app.add_flag("--json", context.json, "Answer in JSON");
    app.add_option("--admin-socket", context.admin_socket,
                   "The daemon's. Default: $LARDER_ADMIN_SOCKET, else ~/.local/share/larder/admin.sock");
    larder::cli::add_allocator_options(app, context);
    larder::cli::add_daemon_commands(app, context);
    larder::cli::add_dataset_commands(app, context);
    larder::cli::add_quota_commands(app, context);
    larder::cli::add_job_commands(app, context);
    larder::cli::add_node_commands(app, context);
    larder::cli::add_remote_command(app, context);
    larder::cli::add_plan_command(app, context);
    larder::cli::add_whatif_command(app, context);
    larder::cli::add_events_command(app, context);
    larder::cli::add_top_command(app, context);
    larder::cli::add_simulate_command(app, context);
#ifdef LARDER_WITH_BENCH
    // Listed here; main hands its command line over before this App sees it, unless something comes before "bench".
    app.add_subcommand("bench", "Measure this machine: larder bench --help")->prefix_command()->callback([] {
        throw CLI::ValidationError("bench", "comes first, its options after it: larder bench NAME --json");
    });
#endif
    try {
        app.parse(argc, argv);
    } catch (const CLI::RequiredError& error) {
        const auto unknown = app.remaining(true);
        if (unknown.empty()) return app.exit(error), larder::cli::kUsage;
        std::fprintf(stderr, "larder: unknown command \"%s\"; see --help\n", unknown.front().c_str());
        return larder::cli::kUsage;
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? larder::cli::kDone : larder::cli::kUsage;
    }
    return context.command ? context.command() : static_cast<int>(larder::cli::kUsage);
}

}  // namespace

int main(int argc, char** argv) {
    try {
#ifdef LARDER_WITH_BENCH
        // The benches have command lines of their own.
        if (argc > 1 && std::string_view(argv[1]) == "bench") return larder::bench::bench_main(argc - 1, argv + 1);
#endif
        return run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "larder: %s\n", error.what());
        return larder::cli::kFailed;
    }
}
