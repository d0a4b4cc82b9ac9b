#pragma once

// The metrics that /metrics serves to Prometheus: counters and gauges of each dataset and job, latency histograms by
// block source, and the node's own state. Names are larder_<thing>_<unit>[_total].

#include <cstdint>
#include <optional>
#include <string>

#include "cache/remote/http_transfers.h"
#include "cache/shard/statistics.h"
#include "cache/store/index.h"

namespace larder::cache {

struct AllocatorMetrics {
    bool connected = false;
    std::uint64_t plan = 0;
    double lease_left_seconds = 0;
    std::uint64_t reports = 0;
    std::uint64_t failures = 0;
};

struct NodeMetrics {
    std::uint32_t sessions = 0;
    std::uint64_t slot_bytes = 0;
    std::uint64_t memory_bytes = 0;
    std::uint64_t disk_bytes = 0;
    double uptime_seconds = 0;
    std::uint64_t log_lines_dropped = 0;
    IndexStatus index;
    std::optional<AllocatorMetrics> allocator;
    HttpStatistics http;
};

// The metrics in Prometheus' text format.
std::string metrics_text(const NodeMetrics& node, const ShardStatistics& statistics);

}  // namespace larder::cache
