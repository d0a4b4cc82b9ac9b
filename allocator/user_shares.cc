#include "allocator/user_shares.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "allocator/sorted_indices.h"

namespace larder::allocator {
namespace {

constexpr double kAllButRounding = 1 - 1e-9;  // the floors' sum must not exceed the remote
constexpr double kSmallPart = 1e-6;           // a guarantee that is missed by less counts as kept

struct UserJobs {
    std::vector<std::uint32_t> jobs;
    std::vector<UserClaim> claims;  // of the jobs
    double need = 0;
    double granted = 0;
    double weight = 0;        // of the admitted jobs
    bool has_others = false;  // jobs that are not admitted
};

}  // namespace

std::vector<double> fair_shares(double total, std::span<const UserClaim> claims) {
    std::vector<double> need_by_weight;
    need_by_weight.reserve(claims.size());
    double weights = 0;
    for (const UserClaim& claim : claims) {
        need_by_weight.push_back(claim.need / claim.weight);
        weights += claim.weight;
    }
    std::vector<double> shares(claims.size());
    double left = total;
    for (const std::uint32_t i : ascending(need_by_weight)) {
        const UserClaim& claim = claims[i];
        shares[i] = std::min(claim.need, std::max(0.0, left) * std::min(1.0, claim.weight / weights));
        left -= shares[i];
        weights -= claim.weight;
    }
    return shares;
}

std::optional<ClusterState> with_user_floors(const ClusterState& state, const Plan& plan) {
    const auto is_of_first_user = [&](const ClusterJob& job) { return job.user == state.jobs.front().user; };
    if (std::ranges::all_of(state.jobs, is_of_first_user)) return std::nullopt;
    std::map<std::optional<std::uint32_t>, UserJobs> users;
    const double most = kAllButRounding * state.remote_bytes_per_second;
    double declared = 0;
    for (std::uint32_t j = 0; j < state.jobs.size(); ++j) {
        const ClusterJob& job = state.jobs[j];
        declared += job.bandwidth_floor_bytes_per_second;
        if (!plan.jobs[j].running) continue;
        const double granted = plan.jobs[j].bandwidth_bytes_per_second;
        double network = 0;
        for (const GpuShare& share : placement_of(state, plan, j))
            network += state.nodes[share.node].nic_bytes_per_second;
        const double need = std::min({job.ideal_bytes_per_second * (1 - plan.jobs[j].hit_ratio),
                                      job.bandwidth_cap_bytes_per_second, network, most});
        UserJobs& user = users[job.user];
        user.jobs.push_back(j);
        user.claims.push_back({.need = need, .weight = std::max(granted, kSmallPart * most)});
        user.need += need;
        user.granted += granted;
        user.weight += job.is_admitted ? job.weight : 0;
        user.has_others = user.has_others || !job.is_admitted;
    }
    if (users.size() < 2 || most <= 0) return std::nullopt;
    std::vector<UserClaim> claims;
    claims.reserve(users.size());
    for (const auto& [uid, user] : users) {
        claims.push_back({.need = user.need, .weight = user.weight + (user.has_others ? 1 : 0)});
    }
    const std::vector<double> guarantees = fair_shares(most, claims);
    bool all_have_theirs = true;
    auto guarantee = guarantees.begin();
    for (const auto& [uid, user] : users) {
        all_have_theirs = all_have_theirs && user.granted >= *guarantee++ * (1 - kSmallPart);
    }
    if (all_have_theirs) return std::nullopt;

    ClusterState guaranteed = state;
    std::vector<double> raises(state.jobs.size());
    double raised = 0;
    guarantee = guarantees.begin();
    for (const auto& [uid, user] : users) {
        const std::vector<double> parts = fair_shares(*guarantee++, user.claims);
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const std::uint32_t j = user.jobs[i];
            raises[j] = std::max(0.0, parts[i] - state.jobs[j].bandwidth_floor_bytes_per_second);
            raised += raises[j];
        }
    }
    // Floors that are declared already may be above a user's fair share.
    const double left = std::max(0.0, most - declared);
    const double part = raised > left ? left / raised : 1;
    for (std::size_t j = 0; j < raises.size(); ++j) {
        guaranteed.jobs[j].bandwidth_floor_bytes_per_second += raises[j] * part;
    }
    return guaranteed;
}

}  // namespace larder::allocator
