#pragma once

// Files with secrets: tokens and passwords.

#include <string>
#include <string_view>

#include "base/error.h"

namespace larder {

// Returns the file's text. Error: permission_denied if others than its owner can change it, or others than its owner
// and group can read it. `noun` is for messages: "token file".
Result<std::string> read_private_file(const std::string& file, std::string_view noun);

// Returns the file's first line. Error: invalid_argument, too, if it is empty.
Result<std::string> read_private_line(const std::string& file, std::string_view noun);

}  // namespace larder
