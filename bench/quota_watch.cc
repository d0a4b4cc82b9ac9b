#include "bench/quota_watch.h"

#include <algorithm>

namespace larder::bench {

bool QuotaWatch::is_same(std::uint64_t bytes, std::uint64_t other_bytes) {
    constexpr std::uint64_t kBytesMin = std::uint64_t{1} << 20;
    const auto [less, more] = std::minmax(bytes, other_bytes);
    return more - less <= std::max(kBytesMin, more / 100);
}

void QuotaWatch::look(const std::map<std::string, TierQuota>& quotas, std::int64_t now_ns) {
    const bool were_in_force = in_force_;
    in_force_ = std::ranges::all_of(
        quotas, [](const auto& quota) { return is_same(quota.second.in_force_bytes, quota.second.planned_bytes); });
    const auto planned = [&](const std::string& name) {
        const auto found = quotas.find(name);
        return found == quotas.end() ? 0 : found->second.planned_bytes;
    };
    const auto planned_first = [&](const std::string& name) {
        const auto found = first_planned_.find(name);
        return found == first_planned_.end() ? 0 : found->second;
    };
    const bool unchanged =
        std::ranges::all_of(first_planned_,
                            [&](const auto& first) { return is_same(first.second, planned(first.first)); }) &&
        std::ranges::all_of(
            quotas, [&](const auto& quota) { return is_same(planned_first(quota.first), quota.second.planned_bytes); });
    if (!were_in_force || !in_force_ || !unchanged) {
        first_planned_.clear();
        for (const auto& [name, quota] : quotas) first_planned_[name] = quota.planned_bytes;
        first_ns_ = now_ns;
    }
    stood_ns_ = in_force_ ? now_ns - first_ns_ : 0;
}

}  // namespace larder::bench
