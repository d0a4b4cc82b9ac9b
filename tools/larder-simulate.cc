// `larder simulate`, a separate program: the libraries it links (for linear programs, among others) take longer to load
// than most other commands take to run.

#include <CLI/CLI.hpp>

#include "tools/cli/run_app.h"
#include "tools/simulate/commands.h"

int main(int argc, char** argv) {
    larder::cli::Context context;
    CLI::App app("larder: simulations of a cluster", "larder");
    app.require_subcommand(1);
    app.fallthrough();
    app.add_flag("--json", context.json, "Answer in JSON");
    larder::cli::add_simulate_command(app, context);
    return larder::cli::run_app(app, context, argc, argv);
}
