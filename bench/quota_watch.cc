#include "bench/quota_watch.h"

#include <algorithm>

namespace larder::bench {
namespace {

using Quotas = std::map<std::string, TierQuota>;

// True if the sizes are nearly equal: estimates vary a little.
bool is_same(std::uint64_t bytes, std::uint64_t other_bytes) {
    constexpr std::uint64_t kBytesMin = std::uint64_t{1} << 20;
    const auto [less, more] = std::minmax(bytes, other_bytes);
    return more - less <= std::max(kBytesMin, more / 100);
}

// True if all of `these` have nearly the same plan in `those`.
bool planned_alike(const Quotas& these, const Quotas& those) {
    return std::ranges::all_of(these, [&](const auto& quota) {
        const auto other = those.find(quota.first);
        return is_same(quota.second.planned_bytes, other == those.end() ? 0 : other->second.planned_bytes);
    });
}

}  // namespace

void QuotaWatch::look(const Quotas& quotas, std::int64_t now_ns) {
    const bool were_in_force = in_force_;
    in_force_ = std::ranges::all_of(
        quotas, [](const auto& quota) { return is_same(quota.second.in_force_bytes, quota.second.planned_bytes); });
    if (!were_in_force || !in_force_ || !planned_alike(first_, quotas) || !planned_alike(quotas, first_)) {
        first_ = quotas;
        first_ns_ = now_ns;
    }
    stood_ns_ = in_force_ ? now_ns - first_ns_ : 0;
}

}  // namespace larder::bench
