#pragma once

// Who may read a dataset: it has owner, group and mode as a file does, and a session's user is who the kernel says is
// at the other end of its socket. Names are looked up where people give them; numbers are what is kept.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace larder::cache {

struct Access {
    std::uint32_t owner = 0;  // uid
    std::uint32_t group = 0;  // gid
    unsigned mode = 0640;
};

// As for a file: the owner's bits for the owner, the group's for its members (supplementary ones too), else the
// others'. The superuser may always.
bool may_read(const Access& access, std::uint32_t uid, std::uint32_t gid);

// A name or a number. Unknown names are not_found.
Result<std::uint32_t> user_id(std::string_view name_or_number);
Result<std::uint32_t> group_id(std::string_view name_or_number);

// The name, or the number where none is known.
std::string user_name(std::uint32_t uid);
std::string group_name(std::uint32_t gid);

// "0640": three or four octal digits.
Result<unsigned> parse_mode(std::string_view text);
std::string format_mode(unsigned mode);

}  // namespace larder::cache
