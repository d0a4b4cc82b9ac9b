#include "bench/convergence.h"

#include <boost/json/array.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cache/store/segment_space.h"

namespace larder::bench {
namespace json = boost::json;
namespace {

constexpr const char* kTiers[] = {"memory_bytes", "disk_bytes"};

// A cache that grows by less than this part of its quota within the window counts as full.
constexpr double kStableGrowth = 0.01;

// True if the cached bytes are within a segment of the plan.
bool is_near(std::uint64_t bytes, std::uint64_t planned_bytes) {
    const std::uint64_t segment_bytes =
        std::max(planned_bytes / cache::SegmentSpace::kSegmentsPerQuota, cache::SegmentSpace::kSegmentBytesMin);
    return bytes <= planned_bytes + segment_bytes && bytes + segment_bytes >= planned_bytes;
}

}  // namespace

Result<std::map<std::string, Convergence::TierCache>> Convergence::read_caches(const json::object& plan) {
    std::map<std::string, TierCache> cached;
    for (std::uint32_t i = 0; i < cluster_.nodes(); ++i) {
        const auto datasets = cluster_.node(i).datasets();
        if (!datasets) return std::unexpected(datasets.error());
        for (const json::value& dataset : *datasets) {
            const std::string name(dataset.at("name").as_string());
            for (const char* tier : kTiers) {
                TierCache& tier_cache = cached[JointCluster::node_name(i) + " " + name + " " + tier];
                tier_cache.used_bytes = dataset.at("used").at(tier).to_number<std::uint64_t>();
                tier_cache.quota.in_force_bytes = dataset.at("quota").at(tier).to_number<std::uint64_t>();
            }
        }
    }
    for (const json::value& dataset : plan.at("datasets").as_array()) {
        for (const json::value& node : dataset.at("nodes").as_array()) {
            const std::string node_name(node.at("node").as_string());
            const std::string name(dataset.at("name").as_string());
            for (const char* tier : kTiers) {
                cached[node_name + " " + name + " " + tier].quota.planned_bytes =
                    node.at(tier).to_number<std::uint64_t>();
            }
        }
    }
    return cached;
}

Result<void> Convergence::take_sample(const json::object& plan, std::int64_t now_ns) {
    auto cached = read_caches(plan);
    if (!cached) return std::unexpected(cached.error());
    Sample now{.at_ns = now_ns, .cached = std::move(*cached)};
    for (const auto& run : runs_) now.read_bytes[run->name()] = run->bytes();
    for (const json::value& job : plan.at("jobs").as_array()) {
        now.predicted[std::string(job.at("name").as_string())] =
            job.at("predicted_bytes_per_second").to_number<double>();
    }
    samples_.push_back(std::move(now));
    while (samples_.size() > 1 && now_ns - samples_[1].at_ns >= kWindow_ns) samples_.pop_front();
    has_full_window_ = now_ns - samples_.front().at_ns >= kWindow_ns;
    std::map<std::string, TierQuota> quotas;
    for (const auto& [tier, tier_cache] : samples_.back().cached) quotas[tier] = tier_cache.quota;
    quotas_.add_sample(quotas, now_ns);
    cache_matches_quotas_ = all_match_quotas();
    largest_error_ = 0;
    for (const auto& run : runs_) largest_error_ = std::max(largest_error_, error_of(run->name()));
    return {};
}

bool Convergence::matches_quota(const TierCache& now, const TierCache* at_the_start) {
    const std::uint64_t planned_bytes = now.quota.planned_bytes;
    if (is_near(now.used_bytes, planned_bytes)) return true;
    if (now.used_bytes > planned_bytes) return false;
    if (at_the_start == nullptr || at_the_start->quota.planned_bytes != planned_bytes) return false;
    const double grown = static_cast<double>(now.used_bytes) - static_cast<double>(at_the_start->used_bytes);
    return std::abs(grown) < kStableGrowth * static_cast<double>(planned_bytes);
}

bool Convergence::all_match_quotas() const {
    const auto& before = samples_.front().cached;
    return std::ranges::all_of(samples_.back().cached, [&](const auto& now) {
        const auto found = before.find(now.first);
        return matches_quota(now.second, found == before.end() ? nullptr : &found->second);
    });
}

double Convergence::error_of(const std::string& job) const {
    constexpr double unknown = std::numeric_limits<double>::infinity();
    double predicted_bytes = 0;
    for (std::size_t i = 1; i < samples_.size(); ++i) {
        const auto predicted = samples_[i - 1].predicted.find(job);
        if (predicted == samples_[i - 1].predicted.end()) return unknown;
        predicted_bytes += predicted->second * static_cast<double>(samples_[i].at_ns - samples_[i - 1].at_ns) * 1e-9;
    }
    const auto before = samples_.front().read_bytes.find(job);
    if (before == samples_.front().read_bytes.end() || predicted_bytes <= 0) return unknown;
    const auto bytes = static_cast<double>(samples_.back().read_bytes.at(job) - before->second);
    return std::abs(bytes / predicted_bytes - 1);
}

}  // namespace larder::bench
