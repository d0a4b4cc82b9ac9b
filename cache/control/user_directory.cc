#include "cache/control/user_directory.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/server/accounts.h"
#include "cache/control/dataset_access.h"

namespace larder::cache {
namespace {

constexpr std::size_t kThreadsMax = 16;

}  // namespace

UserDirectory::Service UserDirectory::of_system() {
    return {.user_name = &larder::user_name, .group_name = &larder::group_name, .is_member = &cache::is_member};
}

UserDirectory::UserDirectory(boost::asio::io_context& control, const Clock& clock, Service service)
    : clock_(clock), service_(service), calls_(control, "larder-users", kThreadsMax) {}

std::string UserDirectory::name_of(const Names& names, std::uint32_t id) {
    const auto known = names.find(id);
    return known == names.end() ? std::to_string(id) : known->second.value;
}

std::optional<bool> UserDirectory::is_member(const Membership& membership) const {
    const auto known = memberships_.find(membership);
    if (known == memberships_.end()) return std::nullopt;
    return known->second.value;
}

template <typename Map>
bool UserDirectory::is_fresh(const Map& known, const typename Map::key_type& key) const {
    const auto found = known.find(key);
    return found != known.end() && clock_.now_ns() - found->second.learned_ns < kKept_ns;
}

template <typename Map, typename Value>
void UserDirectory::keep(Map& known, const typename Map::key_type& key, Value value) {
    if (known.size() >= kEntriesMax) known.clear();
    known[key] = {.value = std::move(value), .learned_ns = clock_.now_ns()};
}

void UserDirectory::learn(const Wanted& wanted, std::function<void()> done) {
    Wanted unknown;
    for (const std::uint32_t uid : wanted.users) {
        if (!is_fresh(users_, uid)) unknown.users.push_back(uid);
    }
    for (const std::uint32_t gid : wanted.groups) {
        if (!is_fresh(groups_, gid)) unknown.groups.push_back(gid);
    }
    for (const Membership& membership : wanted.memberships) {
        if (!is_fresh(memberships_, membership)) unknown.memberships.push_back(membership);
    }
    if (unknown.users.empty() && unknown.groups.empty() && unknown.memberships.empty()) return done();
    const auto late = done;
    calls_.run(
        [this, service = service_, unknown = std::move(unknown), done = std::move(done)]() -> BlockingCalls::Then {
            std::vector<std::string> users;
            std::vector<std::string> groups;
            std::vector<bool> memberships;
            users.reserve(unknown.users.size());
            groups.reserve(unknown.groups.size());
            memberships.reserve(unknown.memberships.size());
            for (const std::uint32_t uid : unknown.users) users.push_back(service.user_name(uid));
            for (const std::uint32_t gid : unknown.groups) groups.push_back(service.group_name(gid));
            for (const Membership& asked : unknown.memberships)
                memberships.push_back(service.is_member(asked.uid, asked.gid, asked.group));
            return [this, unknown, users, groups, memberships, done] {
                for (std::size_t i = 0; i < users.size(); ++i) keep(users_, unknown.users[i], users[i]);
                for (std::size_t i = 0; i < groups.size(); ++i) keep(groups_, unknown.groups[i], groups[i]);
                for (std::size_t i = 0; i < memberships.size(); ++i)
                    keep(memberships_, unknown.memberships[i], bool(memberships[i]));
                done();
            };
        },
        kTimeout_ns, late);
}

}  // namespace larder::cache
