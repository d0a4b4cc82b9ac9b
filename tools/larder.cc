#include <CLI/CLI.hpp>

#include <algorithm>
#include <string_view>
#include <vector>

#include "tools/cli/describe_program.h"
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
    bool takes_own_name;  // its commands begin with its name, as `larder-simulate simulate`
};
constexpr SeparateProgram kSeparatePrograms[] = {
    {"simulate", "simulate", "Simulate a trace under a policy, a cache system and a cluster", true},
    {"mount", "mount", "Show a dataset as a directory of files, which any program can read through the cache", true},
    {"unmount", "mount", "End a mount of larder mount", true},
    {"bench", "bench", "Measure Larder on this machine against a peer or a limit: larder bench --help", false},
};

// Asks a separate program to describe itself (describe_program.h): `words` follow its own name in the command line.
int describe(const SeparateProgram& program, const char* what, std::vector<std::string> words) {
    std::vector<std::string> arguments;
    if (!program.takes_own_name) arguments.emplace_back(program.command);
    arguments.emplace_back(what);
    if (program.takes_own_name) {
        words.insert(what == larder::cli::kManPagesWord ? words.begin() + 1 : words.begin(), program.command);
    }
    arguments.insert(arguments.end(), words.begin(), words.end());
    std::vector<char*> pointers{const_cast<char*>("larder")};
    pointers.reserve(arguments.size() + 2);
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    return larder::cli::hand_over(program.program, pointers.data());
}

const SeparateProgram* find_separate(std::string_view command) {
    const auto found = std::ranges::find(kSeparatePrograms, command, &SeparateProgram::command);
    return found == std::end(kSeparatePrograms) ? nullptr : found;
}

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
    larder::cli::add_cat_command(app, context);
    larder::cli::add_quota_commands(app, context);
    larder::cli::add_job_commands(app, context);
    larder::cli::add_node_commands(app, context);
    larder::cli::add_remote_command(app, context);
    larder::cli::add_plan_command(app, context);
    larder::cli::add_whatif_command(app, context);
    larder::cli::add_events_command(app, context);
    larder::cli::add_top_command(app, context);
    larder::cli::add_trace_command(app, context);
    larder::cli::add_shell_commands(app, context, [&app](const std::vector<std::string>& words) {
        if (const SeparateProgram* program = words.empty() ? nullptr : find_separate(words.front())) {
            return describe(*program, larder::cli::kManWord, {words.begin() + 1, words.end()});
        }
        std::vector<std::string> arguments{"larder", larder::cli::kManWord};
        arguments.insert(arguments.end(), words.begin(), words.end());
        std::vector<char*> pointers;
        pointers.reserve(arguments.size());
        for (std::string& argument : arguments) pointers.push_back(argument.data());
        return *larder::cli::describe_program(app, {.line = "larder"}, static_cast<int>(pointers.size()),
                                              pointers.data());
    });
    // Listed for help only; main hands their command lines over before this App sees them, unless an option comes
    // first.
    for (const SeparateProgram& program : kSeparatePrograms) {
        app.add_subcommand(program.command, program.help)
            ->prefix_command()
            ->fallthrough(false)
            ->callback([&context, &program, argv] {
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
    if (argc > 1) {
        if (const SeparateProgram* program = find_separate(arguments[1])) {
            return larder::cli::hand_over(program->program, arguments.data());
        }
    }
    if (argc > 3 && arguments[1] == std::string_view(larder::cli::kCompleteWord)) {
        if (const SeparateProgram* program = find_separate(arguments[2])) {
            return describe(*program, larder::cli::kCompleteWord, {argv + 3, argv + argc});
        }
    }
    return run(argc, argv);
}
