#include "scheduler/policies/lease_plan.h"

#include <algorithm>
#include <cmath>

namespace larder::scheduler {

namespace {

constexpr double kRounding_s = 1e-6;

std::vector<double> even_ends_s(double first_end_s, double lease_s, std::uint32_t leases) {
    std::vector<double> ends_s;
    ends_s.reserve(leases);
    for (std::uint32_t lease = 0; lease < leases; ++lease) ends_s.push_back(first_end_s + lease_s * lease);
    return ends_s;
}

}  // namespace

LeasePlan::LeasePlan(const Snapshot& snapshot, double first_end_s, double lease_s, std::uint32_t leases)
    : LeasePlan(snapshot, even_ends_s(first_end_s, lease_s, leases)) {}

LeasePlan::LeasePlan(const Snapshot& snapshot, std::vector<double> ends_s)
    : now_s_(snapshot.now_s), ends_s_(std::move(ends_s)) {
    for (const GpuTypeState& type : snapshot.gpu_types) free_.emplace_back(ends_s_.size(), type.gpus);
    for (const std::uint32_t gpus : snapshot.claims) claims_left_.insert(claims_left_.end(), ends_s_.size(), gpus);
}

std::vector<double> widening_ends_s(double first_end_s, double lease_s, double last_s) {
    constexpr std::uint64_t kLeasesPerWidth = 16;
    std::vector<double> ends_s{first_end_s};
    const auto first = static_cast<std::uint64_t>(std::llround(first_end_s / lease_s));
    for (std::uint64_t end = first; static_cast<double>(end) * lease_s < last_s;) {
        std::uint64_t width = 1;
        while (end % (2 * width) == 0 && end - first >= 2 * width * kLeasesPerWidth) width *= 2;
        end += width;
        ends_s.push_back(static_cast<double>(end) * lease_s);
    }
    return ends_s;
}

double LeasePlan::start_s(std::uint32_t lease) const {
    return lease == 0 ? now_s_ : end_s(lease - 1);
}

LeaseFit LeasePlan::fit(const LeaseDemand& demand, std::uint32_t gpu_type, const PromisedTimes* within) const {
    LeaseFit found{.gpu_type = gpu_type};
    const double rate = demand.rates[gpu_type];
    double left_s = demand.remaining_bytes / rate;
    bool continues = demand.runs && (demand.runs_on == kAnyGpuType || demand.runs_on == gpu_type);
    bool started = demand.started;
    double still_starting_s = 0;  // rest of a restart that is longer than its lease
    std::size_t span = 0;
    for (std::uint32_t lease = 0; lease < leases(); ++lease) {
        bool is_usable = free(demand, gpu_type, lease) >= demand.gpus;
        if (within != nullptr) {
            while (span < within->spans.size() && within->spans[span].second <= start_s(lease) + kRounding_s) ++span;
            is_usable = is_usable && span < within->spans.size() &&
                        within->spans[span].first <= start_s(lease) + kRounding_s &&
                        within->spans[span].second >= end_s(lease) - kRounding_s;
        }
        if (!is_usable) {
            continues = false;
            if (!demand.preemptible) {
                left_s = demand.remaining_bytes / rate;
                found.leases.clear();
            }
            continue;
        }
        // A job whose leases begin later may run earlier in spare room and be stopped again, so it may lose a restart.
        const double lost_s = continues              ? (lease == 0 ? demand.starting_s : still_starting_s)
                              : started || lease > 0 ? demand.restart_s
                                                     : 0;
        const double begins_s = start_s(lease) + lost_s;
        found.leases.push_back(lease);
        continues = started = true;
        still_starting_s = std::max(0.0, begins_s - end_s(lease));
        if (left_s <= end_s(lease) - begins_s) {
            found.end_s = begins_s + left_s;
            return found;
        }
        left_s -= std::max(0.0, end_s(lease) - begins_s);
    }
    found.end_s = within != nullptr ? kNever : end_s(leases() - 1) + left_s;
    return found;
}

LeaseFit LeasePlan::fit(const LeaseDemand& demand) const {
    LeaseFit best;
    for (std::uint32_t type = 0; type < free_.size(); ++type) {
        if (demand.rates[type] <= 0 || (demand.stays_on != kAnyGpuType && demand.stays_on != type)) continue;
        LeaseFit found = fit(demand, type, nullptr);
        if (best.gpu_type == kNoGpuType || found.end_s < best.end_s) best = std::move(found);
    }
    return best;
}

LeaseFit LeasePlan::fit_late(const LeaseDemand& demand, std::uint32_t gpu_type) const {
    LeaseFit found{.gpu_type = gpu_type};
    // Each span of leases costs a restart, except one that the job begins where it runs.
    double left_s = demand.remaining_bytes / demand.rates[gpu_type] + demand.restart_s;
    const bool goes_on = demand.runs && (demand.runs_on == kAnyGpuType || demand.runs_on == gpu_type);
    const auto last = std::ranges::lower_bound(ends_s_, demand.deadline_s);
    auto lease = static_cast<std::uint32_t>(std::min(last, ends_s_.end() - 1) - ends_s_.begin());
    for (++lease; lease-- > 0;) {
        if (free(demand, gpu_type, lease) < demand.gpus) {
            if (!found.leases.empty() && found.leases.back() == lease + 1) left_s += demand.restart_s;
            continue;
        }
        const double usable_s = std::min(end_s(lease), demand.deadline_s) - start_s(lease);
        if (usable_s <= 0) continue;
        if (lease == 0 && (goes_on || !demand.started)) left_s += demand.starting_s - demand.restart_s;
        found.leases.push_back(lease);
        left_s -= usable_s;
        if (left_s > kRounding_s) continue;
        std::ranges::reverse(found.leases);
        const PromisedTimes times = times_of(found);
        return fit(demand, gpu_type, &times);
    }
    found.leases.clear();
    return found;
}

LeaseFit LeasePlan::fit_late(const LeaseDemand& demand) const {
    if (!demand.preemptible) return fit(demand);
    LeaseFit best;
    for (std::uint32_t type = 0; type < free_.size(); ++type) {
        if (demand.rates[type] <= 0 || (demand.stays_on != kAnyGpuType && demand.stays_on != type)) continue;
        LeaseFit found = fit_late(demand, type);
        if (found.leases.empty()) continue;
        if (best.gpu_type == kNoGpuType || start_s(found.leases.front()) > start_s(best.leases.front())) {
            best = std::move(found);
        }
    }
    return best;
}

LeaseFit LeasePlan::follow(const LeaseDemand& demand, const PromisedTimes& times) const {
    if (times.gpu_type >= free_.size() || demand.rates[times.gpu_type] <= 0) return {};
    return fit(demand, times.gpu_type, &times);
}

PromisedTimes LeasePlan::times_of(const LeaseFit& fit) const {
    PromisedTimes times{.gpu_type = fit.gpu_type, .spans = {}};
    for (const std::uint32_t lease : fit.leases) {
        if (!times.spans.empty() && times.spans.back().second == start_s(lease)) {
            times.spans.back().second = end_s(lease);
        } else {
            times.spans.emplace_back(start_s(lease), end_s(lease));
        }
    }
    return times;
}

// Returns null if the claim is not limited.
std::uint32_t* LeasePlan::claim(std::uint32_t tenant, std::uint32_t gpu_type, std::uint32_t lease) {
    if (claim_left(tenant, gpu_type, lease) == kAllGpus) return nullptr;
    return &claims_left_[claim_index(tenant, gpu_type, lease)];
}

void LeasePlan::take(std::uint32_t gpu_type, std::uint32_t lease, std::uint32_t gpus, std::uint32_t tenant) {
    std::uint32_t& free = free_[gpu_type][lease];
    free -= std::min(free, gpus);
    if (std::uint32_t* const left = claim(tenant, gpu_type, lease)) *left -= std::min(*left, gpus);
}

void LeasePlan::take(const LeaseFit& fit, const LeaseDemand& demand) {
    for (const std::uint32_t lease : fit.leases) take(fit.gpu_type, lease, demand.gpus, demand.tenant);
}

void LeasePlan::release(std::uint32_t gpu_type, std::uint32_t lease, std::uint32_t gpus, std::uint32_t tenant) {
    free_[gpu_type][lease] += gpus;
    if (std::uint32_t* const left = claim(tenant, gpu_type, lease)) *left += gpus;
}

void LeasePlan::hold(std::uint32_t gpu_type, std::uint32_t gpus, double until_s, std::uint32_t tenant) {
    for (std::uint32_t lease = 0; lease < leases() && start_s(lease) < until_s; ++lease) {
        take(gpu_type, lease, gpus, tenant);
    }
}

}  // namespace larder::scheduler
