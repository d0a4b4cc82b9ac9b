#include "cache/control/dataset_access.h"

#include <grp.h>
#include <sys/types.h>

#include <algorithm>
#include <charconv>
#include <vector>

namespace larder::cache {

bool is_member(std::uint32_t uid, std::uint32_t gid, std::uint32_t wanted) {
    if (gid == wanted) return true;
    const std::string user = user_name(uid);
    std::vector<gid_t> groups(64);
    int count = static_cast<int>(groups.size());
    if (::getgrouplist(user.c_str(), gid, groups.data(), &count) < 0) {
        groups.resize(static_cast<std::size_t>(count));
        if (::getgrouplist(user.c_str(), gid, groups.data(), &count) < 0) return false;
    }
    groups.resize(static_cast<std::size_t>(count));
    return std::ranges::find(groups, wanted) != groups.end();
}

std::optional<bool> may_read_without_groups(const DatasetAccess& access, std::uint32_t uid) {
    if (uid == 0) return true;
    if (uid == access.owner) return (access.mode & 0400) != 0;
    const bool group_reads = (access.mode & 0040) != 0;
    const bool others_read = (access.mode & 0004) != 0;
    if (group_reads == others_read) return others_read;
    return std::nullopt;
}

bool may_read_as(const DatasetAccess& access, std::uint32_t uid, bool is_member_of_group) {
    if (const auto known = may_read_without_groups(access, uid)) return *known;
    return (access.mode & (is_member_of_group ? 0040 : 0004)) != 0;
}

bool may_read(const DatasetAccess& access, std::uint32_t uid, std::uint32_t gid) {
    if (const auto known = may_read_without_groups(access, uid)) return *known;
    return may_read_as(access, uid, is_member(uid, gid, access.group));
}

Result<unsigned> parse_mode(std::string_view text) {
    unsigned mode = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
    const bool whole = error == std::errc{} && end == text.data() + text.size();
    if (!whole || text.size() < 3 || text.size() > 4 || mode > 0777) {
        return fail(ErrorCode::invalid_argument,
                    "mode \"" + std::string(text) + "\" is not a mode: give octal digits such as \"0640\"");
    }
    return mode;
}

std::string format_mode(unsigned mode) {
    std::string text = "0000";
    for (std::size_t i = 4; i-- > 1; mode /= 8) text[i] = static_cast<char>('0' + mode % 8);
    return text;
}

}  // namespace larder::cache
