#pragma once

#include "tools/cli/context.h"

namespace larder::mount {

void add_mount_command(CLI::App& app, cli::Context& context);    // mount
void add_unmount_command(CLI::App& app, cli::Context& context);  // unmount

}  // namespace larder::mount
