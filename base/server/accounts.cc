#include "base/server/accounts.h"

#include <grp.h>
#include <netdb.h>
#include <pwd.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace larder {
namespace {

// More than glibc needs for nsswitch.conf. Too little for a mapping of its own, so that it stays in the heap when
// freed.
constexpr std::size_t kNameServiceBytes = std::size_t{64} << 10;
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

void read_name_service_config() {
    std::make_unique<char[]>(kNameServiceBytes).reset();
    // Protocols are in a file of the machine. The file that says where to look is one for all databases.
    std::array<char, 4096> buffer{};
    protoent entry{};
    protoent* found = nullptr;
    static_cast<void>(::getprotobynumber_r(0, &entry, buffer.data(), buffer.size(), &found));
}

}  // namespace

Result<void> load_name_service() {
    const pid_t child = ::fork();
    if (child == 0) {
        read_name_service_config();
        ::_exit(0);
    }
    if (child < 0) return fail_errno(errno, "fork to read the configuration of the name service");
    int status = 0;
    while (::waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) return fail_errno(errno, "wait for the first look-up of the name service");
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        return fail(ErrorCode::no_space, "the first look-up of the name service crashed: is there too little memory?");
    }
    read_name_service_config();
    return {};
}

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
