#pragma once

// Keeps names and groups of the machine's users. The name service may ask a server over the network, and
// hang with it, so it is asked on threads of its own: `learn` gets what is needed within a time limit and keeps it for
// a minute, and the other calls answer from what is kept, at once. Control thread only.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/server/blocking_calls.h"

namespace larder::cache {

class UserDirectory {
public:
    static constexpr std::int64_t kTimeout_ns = 2'000'000'000;
    static constexpr std::int64_t kKept_ns = 60'000'000'000;

    // The name service. Each may block for ever, and is called on several threads at once.
    struct Service {
        std::string (*user_name)(std::uint32_t uid);
        std::string (*group_name)(std::uint32_t gid);
        bool (*is_member)(std::uint32_t uid, std::uint32_t gid, std::uint32_t group);
    };
    static Service of_system();

    UserDirectory(boost::asio::io_context& control, const Clock& clock, Service service = of_system());

    struct Membership {
        std::uint32_t uid = 0;
        std::uint32_t gid = 0;  // the user's own group
        std::uint32_t group = 0;
        auto operator<=>(const Membership&) const = default;
    };
    struct Wanted {
        std::vector<std::uint32_t> users;
        std::vector<std::uint32_t> groups;
        std::vector<Membership> memberships;
    };
    // Calls `done` once all that is wanted is known, or after kTimeout_ns; at once if all is known.
    void learn(const Wanted& wanted, std::function<void()> done);

    // Runs a call that asks the name service, as BlockingCalls::run does, with kTimeout_ns.
    void call(BlockingCalls::Call asks, BlockingCalls::Then late) {
        calls_.run(std::move(asks), kTimeout_ns, std::move(late));
    }

    // The name, or the number if the name is not known.
    std::string user_name(std::uint32_t uid) const { return name_of(users_, uid); }
    std::string group_name(std::uint32_t gid) const { return name_of(groups_, gid); }
    // Nothing if that is not known.
    std::optional<bool> is_member(const Membership& membership) const;

private:
    template <typename Value>
    struct Kept {
        Value value{};
        std::int64_t learned_ns = 0;
    };
    using Names = std::map<std::uint32_t, Kept<std::string>>;
    static constexpr std::size_t kEntriesMax = 65536;

    static std::string name_of(const Names& names, std::uint32_t id);
    template <typename Map>
    bool is_fresh(const Map& known, const typename Map::key_type& key) const;
    template <typename Map, typename Value>
    void keep(Map& known, const typename Map::key_type& key, Value value);

    const Clock& clock_;
    const Service service_;
    Names users_;
    Names groups_;
    std::map<Membership, Kept<bool>> memberships_;
    BlockingCalls calls_;
};

}  // namespace larder::cache
