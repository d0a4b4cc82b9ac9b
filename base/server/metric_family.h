#pragma once

// Builds Prometheus metrics for daemons that keep their own counters and write all of them on request: a family has a
// name, help and type once, then a value for each set of labels. The serializer does the escaping.

#include <prometheus/metric_family.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace larder {

using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

class MetricFamily {
public:
    MetricFamily(prometheus::MetricType type, std::string name, std::string help);

    MetricFamily& add(MetricLabels labels, double value);
    // Adds a histogram. `counts[i]` counts observations up to `bounds[i]` and above the bound before; `counts` has one
    // more entry, for observations above all bounds.
    MetricFamily& add(MetricLabels labels, std::span<const double> bounds, std::span<const std::uint64_t> counts,
                      double sum);

    prometheus::MetricFamily take() { return std::move(family_); }

private:
    prometheus::MetricFamily family_;
};

MetricFamily metric_counter(std::string name, std::string help);
MetricFamily metric_gauge(std::string name, std::string help);
MetricFamily metric_histogram(std::string name, std::string help);

// Returns the text format; families without a value are left out.
std::string metrics_text_of(std::vector<prometheus::MetricFamily> families);

}  // namespace larder
