#include "bench/quota_watch.h"

#include <algorithm>

namespace larder::bench {
namespace {

using Quotas = std::map<std::string, TierQuota>;

// True if the sizes are nearly equal: estimates vary a little.
bool is_nearly_equal(std::uint64_t bytes, std::uint64_t other_bytes) {
    constexpr std::uint64_t kBytesMin = std::uint64_t{1} << 20;
    const auto [smaller, larger] = std::minmax(bytes, other_bytes);
    return larger - smaller <= std::max(kBytesMin, larger / 100);
}

// True if all of `quotas` have nearly the same planned bytes in `other_quotas`.
bool has_same_plan(const Quotas& quotas, const Quotas& other_quotas) {
    return std::ranges::all_of(quotas, [&](const auto& quota) {
        const auto other = other_quotas.find(quota.first);
        return is_nearly_equal(quota.second.planned_bytes,
                               other == other_quotas.end() ? 0 : other->second.planned_bytes);
    });
}

}  // namespace

void QuotaWatch::add_sample(const Quotas& quotas, std::int64_t now_ns) {
    const bool were_in_force = in_force_;
    in_force_ = std::ranges::all_of(quotas, [](const auto& quota) {
        return is_nearly_equal(quota.second.in_force_bytes, quota.second.planned_bytes);
    });
    if (!were_in_force || !in_force_ || !has_same_plan(first_, quotas) || !has_same_plan(quotas, first_)) {
        first_ = quotas;
        first_ns_ = now_ns;
    }
    stable_ns_ = in_force_ ? now_ns - first_ns_ : 0;
}

}  // namespace larder::bench
