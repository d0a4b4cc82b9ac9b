#pragma once

// The allocator's metrics for Prometheus (/metrics): the plan and its predictions beside the measured values, quotas
// and grants of each node, dataset and job, leases, events. Names are larder_<thing>_<unit>[_total]. The metrics of
// node daemons have other names, so both fit one dashboard (tools/grafana-dashboard.json).

#include <array>
#include <cstdint>
#include <string>

#include "allocator/service/events.h"
#include "allocator/service/view.h"

namespace larder::allocator {

// The service's counters of its own work.
struct ServiceCounts {
    static constexpr std::array kPlanSeconds{0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0};

    void add_plan(std::int64_t took_ns);

    std::uint64_t reports_taken = 0;
    std::uint64_t reports_refused = 0;
    std::uint64_t plans_failed = 0;
    std::array<std::uint64_t, kPlanSeconds.size() + 1> plans{};  // by how long they took; the last: longer than all
    double plans_s = 0;
};

inline constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

// Returns metrics in Prometheus' text format, kMetricsType.
std::string metrics_text(const ClusterView& view, const Cluster& cluster, const EventLog& events,
                         const ServiceCounts& counts, std::int64_t now_ns, std::int64_t uptime_ns);
// Returns the metrics of an allocator that stands by.
std::string standby_metrics_text();

}  // namespace larder::allocator
