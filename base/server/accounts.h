#pragma once

// Looks up users and groups of this machine, by NSS. A look-up may block for as long as a directory service does.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace larder {

// Reads the configuration of NSS. Call it first in main(), while there is one thread: glibc crashes if it runs out of
// memory in its first look-up. So memory for that is made sure of here, and a child process tries it first. Asks no
// directory service. Error: no_space if there is too little memory. Throws std::bad_alloc.
Result<void> load_name_service();

// A number stands for itself. Error: not_found.
Result<std::uint32_t> user_id(std::string_view name_or_number);
Result<std::uint32_t> group_id(std::string_view name_or_number);
// The number in text if there is no name.
std::string user_name(std::uint32_t uid);
std::string group_name(std::uint32_t gid);

}  // namespace larder
