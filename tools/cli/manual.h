#pragma once

// Man pages in roff's man macros, one for each command.

#include <string>
#include <vector>

#include "base/error.h"
#include "tools/cli/command_tree.h"

namespace larder::cli {

struct ManualPage {
    std::string name;  // of the file: "larder-dataset-add.1"
    std::string text;
};

// Returns the page of a command. `section`: 1 for users' commands, 8 for daemons. `program`: the tree's root, whose
// options stand behind every command.
ManualPage manual_page(const CommandText& command, const CommandText& program, int section);

// Returns the pages of a command and of all below it.
std::vector<ManualPage> manual_pages(const CommandText& command, const CommandText& program, int section);

// Finds the command that the words name: {"dataset", "add"}.
Result<const CommandText*> find_command(const CommandText& program, const std::vector<std::string>& words);

}  // namespace larder::cli
