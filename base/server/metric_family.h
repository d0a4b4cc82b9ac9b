#pragma once

// Building Prometheus metrics by hand, for daemons that keep their own counts and write all of them when asked: a
// family has its name, help and type once, then a value for each set of labels. Escaping is the serializer's.

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
    // A histogram of `counts[i]` observations at most `bounds[i]` and above the bound before; one more count than
    // bounds, of those above all.
    MetricFamily& add(MetricLabels labels, std::span<const double> bounds, std::span<const std::uint64_t> counts,
                      double sum);

    prometheus::MetricFamily take() { return std::move(family_); }

private:
    prometheus::MetricFamily family_;
};

MetricFamily metric_counter(std::string name, std::string help);
MetricFamily metric_gauge(std::string name, std::string help);
MetricFamily metric_histogram(std::string name, std::string help);

// The text format; families without a value are left out.
std::string metrics_text_of(std::vector<prometheus::MetricFamily> families);

}  // namespace larder
