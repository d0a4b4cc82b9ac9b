#include "allocator/service/stored_state.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "allocator/service/state_rows.h"
#include "allocator/service/state_store.h"
#include "base/server/lmdb_check.h"

namespace larder::allocator {
namespace {

Result<void> check_damage(const std::string& environment) {
    if (!std::filesystem::exists(environment)) return {};
    const std::array<std::string_view, 1> databases{"state"};
    const auto damage = find_lmdb_damage(environment, databases);
    if (!damage) return std::unexpected(damage.error());
    if (*damage) return fail(ErrorCode::corrupt, "the state in " + environment + " is damaged: " + **damage);
    return {};
}

// Returns the floors on record, or those of leases where they are higher: an older version recorded none.
std::map<std::string, std::optional<double>> floors_of(const ClusterRecord& record) {
    std::map<std::string, std::optional<double>> floors = record.floors;
    for (const auto& [node, leases] : record.leases) {
        if (!leases) continue;
        for (const Lease& lease : *leases) {
            std::optional<double>& floor = floors[node];
            floor = std::max(floor.value_or(0), lease.expired());
        }
    }
    return floors;
}

// Returns the rates of leases that have not expired.
LeaseLedger::Records rates_of(const ClusterRecord& record, std::int64_t now_ns) {
    LeaseLedger::Records rates;
    for (const auto& [node, leases] : record.leases) {
        if (!leases) continue;
        RecordedRates recorded;
        for (const Lease& lease : *leases) {
            if (lease.expires_ns <= now_ns || lease.rates.empty()) continue;
            recorded.bytes_per_second = std::max(recorded.bytes_per_second, lease.in_force());
            recorded.rates = lease.rates;
        }
        if (recorded.bytes_per_second > 0) rates[node] = std::move(recorded);
    }
    return rates;
}

}  // namespace

Result<StateToMove> read_state_to_move(const std::string& directory, std::int64_t lease_ns, std::int64_t now_ns) {
    const std::string settings = directory + "/settings";
    const std::string cluster = directory + "/cluster";
    if (!std::filesystem::exists(settings) && !std::filesystem::exists(cluster)) {
        return fail(ErrorCode::not_found, "there is no state of an allocator in " + directory);
    }
    auto store = StateStore::open(
        {.directory = directory, .lease_ns = lease_ns, .opens_moved = true, .check_damage = check_damage}, now_ns);
    if (!store) return std::unexpected(store.error());
    const ClusterRecord& found = (*store)->found();
    const std::int64_t wait_ns = std::max<std::int64_t>(0, found.no_lease_before_ns.value_or(now_ns) - now_ns);
    const ClusterRecord moved{.jobs = found.jobs,
                              .pins = found.pins,
                              .remote = found.remote,
                              .ideals = found.ideals,
                              .epochs = found.epochs,
                              .floors = floors_of(found),
                              .rates = rates_of(found, now_ns)};
    // Leases that are not on record have to be waited out in etcd, too.
    const StateRun run{.boot = "",
                       .lease_ns = std::max(lease_ns, (*store)->longest_lease_ns()),
                       .no_lease_before_ns = std::nullopt,
                       .rates_recorded = wait_ns == 0};
    StateToMove state{.lock = (*store)->take_lock(),
                      .settings = {.noun = "settings", .version = kStateVersion, .rows = rows_of(moved)}};
    state.settings.rows.push_back(row_of(run));
    return state;
}

Result<void> mark_as_moved(const std::string& directory, const std::string& where) {
    return replace_file(directory + "/" + kMovedFile, where + "\n", 0600);
}

}  // namespace larder::allocator
