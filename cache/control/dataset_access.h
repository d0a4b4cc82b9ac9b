#pragma once

// Decides which users may read a dataset. A dataset has an owner, a group and a mode, as a file does. A session's user
// is the one that the kernel reports for the other end of its socket. Names are resolved when people enter them; only
// numbers are stored.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/server/accounts.h"

namespace larder::cache {

struct DatasetAccess {
    std::uint32_t owner = 0;  // uid
    std::uint32_t group = 0;  // gid
    unsigned mode = 0640;
};

// Applies the mode as for a file: the owner's bits to the owner, the group's bits to its members (supplementary ones
// too), else the others' bits. The superuser may always read. Nothing if it depends on the user's groups.
std::optional<bool> may_read_without_groups(const DatasetAccess& access, std::uint32_t uid);
bool may_read_as(const DatasetAccess& access, std::uint32_t uid, bool is_member_of_group);

// The calls below ask the machine's name service, which may block for long.

// True if the user, whose own group is `gid`, is a member of `group`.
bool is_member(std::uint32_t uid, std::uint32_t gid, std::uint32_t group);
bool may_read(const DatasetAccess& access, std::uint32_t uid, std::uint32_t gid);

// Modes are three or four octal digits, such as "0640".
Result<unsigned> parse_mode(std::string_view text);
std::string format_mode(unsigned mode);

}  // namespace larder::cache
