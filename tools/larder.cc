#include <CLI/CLI.hpp>

#include <algorithm>
#include <string_view>
#include <vector>

#include "tools/cli/run_app.h"

namespace {

using larder::cli::Context;

constexpr const char* kFooter =
    "Exit codes: 0 done; 1 failed; 2 wrong usage; 3 no daemon answers; 4 not found; 5 refused: no permission, or "
    "exists already; 6 the remote does not answer.";

// Commands of separate programs, larder-<program>.
struct SeparateProgram {
    const char* command;
    const char* program;
    const char* help;
};
constexpr SeparateProgram kSeparatePrograms[] = {
    {"simulate", "simulate", "Simulate a trace under a policy, a cache system and a cluster"},
    {"mount", "mount", "Show a dataset as a directory of files, which any program can read through the cache"},
    {"unmount", "mount", "End a mount of larder mount"},
    {"bench", "bench", "Measure Larder on this machine against a peer or a limit: larder bench --help"},
};

int run(int argc, char** argv) {
    Context context;
    CLI::App app("larder: keeps training jobs fed from a cache of remote data");
    app.name("larder");
    app.set_version_flag("--version", "larder " LARDER_VERSION);
    app.footer(kFooter);
    app.require_subcommand(1);
    app.fallthrough();
    app.add_flag("--json", context.json, "Answer in JSON");
    larder::cli::add_admin_socket_option(app, context);
    larder::cli::add_allocator_options(app, context);
    larder::cli::add_daemon_commands(app, context);
    larder::cli::add_status_command(app, context);
    larder::cli::add_doctor_command(app, context);
    larder::cli::add_dataset_commands(app, context);
    larder::cli::add_quota_commands(app, context);
    larder::cli::add_job_commands(app, context);
    larder::cli::add_node_commands(app, context);
    larder::cli::add_remote_command(app, context);
    larder::cli::add_plan_command(app, context);
    larder::cli::add_whatif_command(app, context);
    larder::cli::add_events_command(app, context);
    larder::cli::add_top_command(app, context);
    // Listed for help only; main hands their command lines over before this App sees them, unless an option comes
    // first.
    for (const SeparateProgram& program : kSeparatePrograms) {
        app.add_subcommand(program.command, program.help)->prefix_command()->fallthrough(false)->callback([&context, &program, argv] {
            context.command = [&program, argv] { return larder::cli::hand_over(program.program, argv); };
        });
    }
    return larder::cli::run_app(app, context, argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<char*> arguments(argv, argv + argc);
    // The separate programs take --json after their own words.
    if (argc > 2 && argv[1] == std::string_view("--json")) {
        std::rotate(arguments.begin() + 1, arguments.begin() + 2, arguments.end());
    }
    arguments.push_back(nullptr);
    for (const SeparateProgram& program : kSeparatePrograms) {
        if (argc > 1 && arguments[1] == std::string_view(program.command)) {
            return larder::cli::hand_over(program.program, arguments.data());
        }
    }
    return run(argc, argv);
}
