// `larder mount`, a separate program: it serves a file system and links libfuse.

#include <CLI/CLI.hpp>

#include "tools/cli/run_app.h"
#include "tools/mount/command.h"

int main(int argc, char** argv) {
    larder::cli::Context context;
    CLI::App app("larder: datasets as directories", "larder");
    app.require_subcommand(1);
    app.fallthrough();
    app.add_flag("--json", context.json, "Answer in JSON");
    larder::cli::add_admin_socket_option(app, context);
    larder::mount::add_mount_command(app, context);
    larder::mount::add_unmount_command(app, context);
    return larder::cli::run_app(app, context, argc, argv);
}
