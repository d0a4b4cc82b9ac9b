#include "cache/control/node_reporter.h"

#include <algorithm>
#include <cmath>

#include "cache/control/state_lock.h"
#include "cache/protocol/record.h"

namespace larder::cache {
namespace {

// Longer than the moment without sessions between two epochs of a job.
constexpr std::int64_t kGoneAfter_ns = 5'000'000'000;

// The ratio (bytes in the cache / payload bytes) is above 1 for plain records, which have headers and padding, and may
// be below 1 for compressed ones. It is measured once this many payload bytes are cached. Before that, the largest
// possible ratio is reported, so that the first pass of a dataset that fits is kept whole. The size of a compressed
// dataset is its size in the cache, so that cached bytes / size is the hit ratio that jobs can reach.
constexpr std::uint64_t kPayloadSampleBytesMin = 1 << 20;
constexpr std::uint64_t kRecordOverheadMax = protocol::kRecordHeaderBytes + 4096;
// A reported ratio is kept until it is too low, or too high by kRatioTolerance: a size that changed with every block
// would change all quotas. kRatioMargin leaves room for blocks larger than those cached so far.
constexpr double kRatioMargin = 0.01;
constexpr double kRatioTolerance = 0.05;

double payload_ratio(std::uint64_t stored_bytes, std::uint64_t payload_bytes) {
    return static_cast<double>(stored_bytes) / static_cast<double>(payload_bytes);
}

}  // namespace

NodeReporter::NodeReporter(std::uint64_t state_directory)
    : instance_(draw_number()), state_directory_(state_directory) {}

std::uint64_t NodeReporter::estimate_stored_bytes(const ReportedDataset& dataset, const StoreUsage& usage) {
    double& ratio = stored_ratios_[dataset.name()];
    const std::uint64_t used_bytes = usage.memory_bytes + usage.disk_bytes;
    if (usage.payload_bytes >= dataset.payload_bytes) {
        ratio = payload_ratio(used_bytes, usage.payload_bytes);
        if (usage.payload_bytes == dataset.payload_bytes) return used_bytes;
    } else if (usage.payload_bytes < std::min(kPayloadSampleBytesMin, dataset.payload_bytes)) {
        ratio = payload_ratio(dataset.payload_bytes + dataset.blocks * kRecordOverheadMax, dataset.payload_bytes);
    } else {
        const double seen = payload_ratio(used_bytes, usage.payload_bytes);
        if (ratio == 0) ratio = seen;
        if (seen > ratio || seen < ratio * (1 - kRatioTolerance)) ratio = seen * (1 + kRatioMargin);
    }
    return static_cast<std::uint64_t>(std::llround(static_cast<double>(dataset.payload_bytes) * ratio));
}

allocator::DatasetReport NodeReporter::report_of(const ReportedDataset& dataset, const ShardStatistics& statistics) {
    const auto found = std::ranges::find(statistics.datasets, dataset.name(), &DatasetStatistics::name);
    const StoreUsage usage = found == statistics.datasets.end() ? StoreUsage{} : found->usage;
    allocator::DatasetReport report = dataset.report;
    report.size_bytes = estimate_stored_bytes(dataset, usage);
    report.cached_memory_bytes = usage.memory_bytes;
    report.cached_disk_bytes = usage.disk_bytes;
    return report;
}

std::map<std::string, NodeReporter::Job> NodeReporter::jobs_of(const ShardStatistics& statistics) {
    std::map<std::string, Job> jobs;
    for (const JobStatistics& part : statistics.jobs) {
        Job& job = jobs[part.job];
        job.sessions += part.sessions;
        job.loops += part.training_loops;
        job.bytes += part.bytes_delivered;
        job.busy_ns += part.busy_ns;
        job.remote_bytes += part.counters.remote_read_bytes;
        job.waiting_bytes += part.waiting_bytes;
        // Among the datasets with sessions, the one that the job has read most is reported.
        if (part.sessions == 0 && !job.dataset.empty()) continue;
        if (!job.dataset.empty() && part.bytes_delivered <= job.dataset_bytes_delivered) continue;
        job.dataset = part.dataset;
        job.dataset_bytes_delivered = part.bytes_delivered;
        job.unread_bytes = part.unread_bytes;
        job.effective_bytes = std::min(part.effective_cache_bytes, part.unread_bytes);
        job.epoch = part.bytes_delivered > 0 ? std::optional(part.epoch) : std::nullopt;
    }
    return jobs;
}

bool NodeReporter::observe(const Job& job, Seen& seen, std::int64_t now_ns) const {
    if (job.sessions > 0) seen.session_at_ns = now_ns;
    if (seen.session_at_ns == 0 || now_ns - seen.session_at_ns > kGoneAfter_ns) return false;
    if (job.sessions > 0) seen.loops = job.loops;
    if (seen.at_ns != 0) {
        const double seconds = static_cast<double>(now_ns - seen.at_ns) * 1e-9;
        if (seconds > 0) {
            // Demand: bytes read plus bytes that wait for bandwidth.
            const auto taken = static_cast<double>(job.remote_bytes - std::min(seen.remote_bytes, job.remote_bytes));
            seen.demand_bytes_per_second = (taken + static_cast<double>(job.waiting_bytes)) / seconds;
        }
    }
    seen.at_ns = now_ns;
    seen.remote_bytes = job.remote_bytes;
    return true;
}

allocator::NodeReport NodeReporter::make(const AllocatorClientConfig& allocator, Quota room,
                                         const std::vector<ReportedDataset>& datasets,
                                         const ShardStatistics& statistics, std::uint64_t lease_applied,
                                         std::int64_t now_ns, const ReportedPeers& peers) {
    std::erase_if(stored_ratios_, [&](const auto& known) {
        return std::ranges::find(datasets, known.first, &ReportedDataset::name) == datasets.end();
    });
    allocator::NodeReport report{.node = allocator.node,
                                 .instance = instance_,
                                 .state_directory = state_directory_,
                                 .lease_applied = lease_applied,
                                 .rates = allocator.rates,
                                 .scans = statistics.scans,
                                 .gpus = allocator.gpus,
                                 .memory_bytes = room.memory_bytes,
                                 .disk_bytes = room.disk_bytes};
    if (!peers.endpoint.empty()) {
        report.peer_group = peers.group;
        report.peer_endpoint = peers.endpoint;
    }
    if (allocator.disk_read_bytes_per_second > 0) {
        report.disk_read_bytes_per_second = allocator.disk_read_bytes_per_second;
    }
    if (allocator.nic_bytes_per_second > 0) report.nic_bytes_per_second = allocator.nic_bytes_per_second;
    for (const ReportedDataset& dataset : datasets) {
        if (dataset.payload_bytes > 0) report.datasets.push_back(report_of(dataset, statistics));
    }
    for (const auto& [name, job] : jobs_of(statistics)) {
        Seen& seen = seen_[name];
        const bool known = std::ranges::find(datasets, job.dataset, &ReportedDataset::name) != datasets.end();
        if (!observe(job, seen, now_ns) || !known) {
            if (job.sessions == 0) seen_.erase(name);
            continue;
        }
        report.jobs.push_back({.name = name,
                               .dataset = job.dataset,
                               .ranks = seen.loops,
                               .bytes = job.bytes,
                               .busy_s = static_cast<double>(job.busy_ns) * 1e-9,
                               .demand_bytes_per_second = seen.demand_bytes_per_second,
                               .remote_bytes = job.remote_bytes,
                               .unread_bytes = job.unread_bytes,
                               .unread_cached_bytes = job.effective_bytes,
                               .epoch = job.epoch});
    }
    return report;
}

}  // namespace larder::cache
