#include "base/server/metric_family.h"

#include <prometheus/text_serializer.h>

#include <cstdint>
#include <limits>
#include <utility>

namespace larder {

using prometheus::ClientMetric;
using prometheus::MetricType;

MetricFamily::MetricFamily(MetricType type, std::string name, std::string help) {
    family_.type = type;
    family_.name = std::move(name);
    family_.help = std::move(help);
}

MetricFamily& MetricFamily::add(MetricLabels labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.counter.value = value;
    metric.gauge.value = value;
    family_.metric.push_back(std::move(metric));
    return *this;
}

MetricFamily& MetricFamily::add(MetricLabels labels, std::span<const double> bounds,
                                std::span<const std::uint64_t> counts, double sum) {
    ClientMetric metric;
    metric.label = std::move(labels);
    std::uint64_t below = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
        below += counts[i];
        const double bound = i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity();
        metric.histogram.bucket.push_back({below, bound});
    }
    metric.histogram.sample_count = below;
    metric.histogram.sample_sum = sum;
    family_.metric.push_back(std::move(metric));
    return *this;
}

MetricFamily metric_counter(std::string name, std::string help) {
    return {MetricType::Counter, std::move(name), std::move(help)};
}

MetricFamily metric_gauge(std::string name, std::string help) {
    return {MetricType::Gauge, std::move(name), std::move(help)};
}

MetricFamily metric_histogram(std::string name, std::string help) {
    return {MetricType::Histogram, std::move(name), std::move(help)};
}

std::string metrics_text_of(std::vector<prometheus::MetricFamily> families) {
    std::erase_if(families, [](const prometheus::MetricFamily& family) { return family.metric.empty(); });
    return prometheus::TextSerializer().Serialize(families);
}

}  // namespace larder
