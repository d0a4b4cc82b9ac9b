#include "base/server/accounts.h"

#include <grp.h>
#include <pwd.h>
#include <sys/types.h>

#include <cerrno>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

namespace larder {
namespace {

constexpr std::size_t kLookupBytesMax = std::size_t{1} << 20;

// Calls a getpw*_r or getgr*_r with a buffer that grows until the entry fits. Returns the result of `convert` for
// the entry.
template <typename Entry, typename Lookup, typename Convert>
auto look_up(Lookup lookup, Convert convert) -> std::optional<decltype(convert(std::declval<const Entry&>()))> {
    std::vector<char> buffer(4096);
    for (;;) {
        Entry entry;
        Entry* found = nullptr;
        const int failed = lookup(&entry, buffer.data(), buffer.size(), &found);
        if (failed == ERANGE && buffer.size() < kLookupBytesMax) {
            buffer.resize(buffer.size() * 4);
            continue;
        }
        if (failed != 0 || found == nullptr) return std::nullopt;
        return convert(entry);
    }
}

std::optional<std::uint32_t> parse_number(std::string_view text) {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
}

}  // namespace

Result<std::uint32_t> user_id(std::string_view name_or_number) {
    if (const auto number = parse_number(name_or_number)) return *number;
    const std::string name(name_or_number);
    const auto uid =
        look_up<passwd>([&](passwd* entry, char* buffer, std::size_t bytes,
                            passwd** found) { return ::getpwnam_r(name.c_str(), entry, buffer, bytes, found); },
                        [](const passwd& entry) { return std::uint32_t{entry.pw_uid}; });
    if (!uid) return fail(ErrorCode::not_found, "user \"" + name + "\" is unknown on this machine");
    return *uid;
}

Result<std::uint32_t> group_id(std::string_view name_or_number) {
    if (const auto number = parse_number(name_or_number)) return *number;
    const std::string name(name_or_number);
    const auto gid = look_up<struct group>(
        [&](struct group* entry, char* buffer, std::size_t bytes, struct group** found) {
            return ::getgrnam_r(name.c_str(), entry, buffer, bytes, found);
        },
        [](const struct group& entry) { return std::uint32_t{entry.gr_gid}; });
    if (!gid) return fail(ErrorCode::not_found, "group \"" + name + "\" is unknown on this machine");
    return *gid;
}

std::string user_name(std::uint32_t uid) {
    return look_up<passwd>([&](passwd* entry, char* buffer, std::size_t bytes,
                               passwd** found) { return ::getpwuid_r(uid, entry, buffer, bytes, found); },
                           [](const passwd& entry) { return std::string(entry.pw_name); })
        .value_or(std::to_string(uid));
}

std::string group_name(std::uint32_t gid) {
    return look_up<struct group>([&](struct group* entry, char* buffer, std::size_t bytes,
                                     struct group** found) { return ::getgrgid_r(gid, entry, buffer, bytes, found); },
                                 [](const struct group& entry) { return std::string(entry.gr_name); })
        .value_or(std::to_string(gid));
}

}  // namespace larder
