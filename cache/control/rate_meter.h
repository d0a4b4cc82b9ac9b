#pragma once

// The recent rate of each job in bytes per second, from samples of its running total. Control thread only.

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "cache/shard/statistics.h"

namespace larder::cache {

class RateMeter {
public:
    static constexpr std::int64_t kWindowNs = 2'000'000'000;

    // Call it about once a second.
    void sample(const ShardStatistics& statistics, std::int64_t now_ns) {
        for (const JobStatistics& job : statistics.jobs) {
            Meter& meter = meters_[{job.dataset_id, job.job}];
            if (meter.at_ns == 0) {
                meter = {.at_ns = now_ns, .bytes = job.bytes_delivered};
            } else if (now_ns - meter.at_ns >= kWindowNs) {
                // Clients report the totals, so a total may decrease.
                const bool grew = job.bytes_delivered > meter.bytes;
                const double bytes = grew ? static_cast<double>(job.bytes_delivered - meter.bytes) : 0;
                meter.bytes_per_second = bytes * 1e9 / static_cast<double>(now_ns - meter.at_ns);
                meter.at_ns = now_ns;
                meter.bytes = job.bytes_delivered;
            }
            meter.sampled_ns = now_ns;
        }
        std::erase_if(meters_, [&](const auto& item) { return item.second.sampled_ns != now_ns; });
    }

    double bytes_per_second(std::uint64_t dataset_id, const std::string& job) const {
        const auto found = meters_.find({dataset_id, job});
        return found == meters_.end() ? 0 : found->second.bytes_per_second;
    }

private:
    struct Meter {
        std::int64_t at_ns = 0;
        std::uint64_t bytes = 0;
        double bytes_per_second = 0;
        std::int64_t sampled_ns = 0;
    };
    std::map<std::pair<std::uint64_t, std::string>, Meter> meters_;
};

}  // namespace larder::cache
