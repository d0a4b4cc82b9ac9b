#include "cache/control/daemon_metrics.h"

#include <array>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "base/server/metric_family.h"

namespace larder::cache {
namespace {

using Labels = MetricLabels;

constexpr std::array<const char*, protocol::kBlockSources> kSourceNames{"none", "memory", "disk", "remote", "peer"};

using Family = larder::MetricFamily;
using Families = std::vector<prometheus::MetricFamily>;

Family counter(std::string name, std::string help) {
    return metric_counter(std::move(name), std::move(help));
}
Family gauge(std::string name, std::string help) {
    return metric_gauge(std::move(name), std::move(help));
}

void add_latency(Family& family, MetricLabels labels, const LatencyHistogram& histogram) {
    std::array<double, std::tuple_size_v<decltype(histogram.buckets)> - 1> bounds{};
    for (std::size_t i = 0; i < bounds.size(); ++i) bounds[i] = std::ldexp(1e-6, static_cast<int>(i));
    family.add(std::move(labels), bounds, histogram.buckets, static_cast<double>(histogram.sum_ns) / 1e9);
}

double as_double(std::uint64_t value) {
    return static_cast<double>(value);
}

// Adds the counters to two families: blocks by source and bytes by source.
void add_blocks(Family& blocks, Family& bytes, const Labels& labels, const BlockCounters& counters) {
    const auto with_source = [&](const char* source) {
        Labels all = labels;
        all.push_back({"source", source});
        return all;
    };
    blocks.add(with_source("memory"), as_double(counters.memory_hits));
    blocks.add(with_source("disk"), as_double(counters.disk_hits));
    blocks.add(with_source("remote"), as_double(counters.misses));
    blocks.add(with_source("peer"), as_double(counters.peer_hits));
    bytes.add(with_source("memory"), as_double(counters.memory_bytes));
    bytes.add(with_source("disk"), as_double(counters.disk_bytes));
    bytes.add(with_source("remote"), as_double(counters.remote_bytes));
    bytes.add(with_source("peer"), as_double(counters.peer_bytes));
}

void add_datasets(Families& families, const ShardStatistics& statistics) {
    auto blocks = counter("larder_dataset_blocks_total", "Blocks delivered, by where they came from");
    auto bytes = counter("larder_dataset_bytes_total", "Bytes delivered, by where they came from");
    auto read = counter("larder_dataset_remote_read_bytes_total", "Bytes taken from the remote");
    auto errors = counter("larder_dataset_remote_errors_total", "Reads of the remote that failed");
    auto crc = counter("larder_dataset_crc_failures_total", "Cached blocks found damaged and fetched again");
    auto corrupt = counter("larder_dataset_remote_corrupt_total",
                           "Reads of the remote whose bytes did not have the checksum of the index");
    auto peers_failed = counter("larder_dataset_peer_failures_total",
                                "Blocks that another node should have lent and did not, read from the remote instead");
    auto lent = counter("larder_dataset_lent_bytes_total", "Bytes of cached blocks lent to other nodes");
    auto quarantined = gauge("larder_dataset_quarantined_blocks",
                             "Blocks that are no longer read because the remote's bytes are wrong");
    auto refused = counter("larder_dataset_admissions_refused_total", "Missed blocks that were not admitted");
    auto used = gauge("larder_dataset_used_bytes", "Bytes of cache used, by tier");
    auto quota = gauge("larder_dataset_quota_bytes", "Bytes of cache that may be used, by tier");
    auto window = gauge("larder_dataset_window_bytes", "Bytes in the shared window, which is no part of the cache");
    auto payload = gauge("larder_dataset_cached_payload_bytes", "Bytes of the dataset that are cached");
    auto cached = gauge("larder_dataset_cached_blocks", "Blocks of the dataset that are cached");
    auto full = gauge("larder_dataset_disk_full", "1 while nothing is admitted because the disk is full");
    auto sessions = gauge("larder_dataset_sessions", "Loader processes connected");
    Family latency = metric_histogram("larder_dataset_block_latency_seconds",
                                      "Time from a block's request to its delivery, by where the block came from");
    for (const DatasetStatistics& dataset : statistics.datasets) {
        const Labels labels{{"dataset", dataset.name}};
        const auto tier = [&](const char* name) { return Labels{{"dataset", dataset.name}, {"tier", name}}; };
        add_blocks(blocks, bytes, labels, dataset.counters);
        read.add(labels, as_double(dataset.counters.remote_read_bytes));
        errors.add(labels, as_double(dataset.counters.remote_errors));
        crc.add(labels, as_double(dataset.counters.crc_failures));
        corrupt.add(labels, as_double(dataset.counters.remote_corrupt));
        peers_failed.add(labels, as_double(dataset.counters.peer_failures));
        lent.add(labels, as_double(dataset.counters.lent_bytes));
        quarantined.add(labels, as_double(dataset.quarantined_blocks));
        refused.add(labels, as_double(dataset.admissions_refused));
        used.add(tier("memory"), as_double(dataset.usage.memory_bytes));
        used.add(tier("disk"), as_double(dataset.usage.disk_bytes));
        quota.add(tier("memory"), as_double(dataset.quota.memory_bytes));
        quota.add(tier("disk"), as_double(dataset.quota.disk_bytes));
        window.add(labels, as_double(dataset.usage.window_bytes));
        payload.add(labels, as_double(dataset.usage.payload_bytes));
        cached.add(labels, as_double(dataset.usage.blocks));
        full.add(labels, dataset.disk_full ? 1 : 0);
        sessions.add(labels, dataset.sessions);
        for (std::size_t source = 1; source < dataset.latency.size(); ++source) {
            add_latency(latency, {{"dataset", dataset.name}, {"source", kSourceNames[source]}},
                        dataset.latency[source]);
        }
    }
    for (Family* family : {&blocks, &bytes, &read, &errors, &crc, &corrupt, &peers_failed, &lent, &quarantined,
                           &refused, &used, &quota, &window, &payload, &cached, &full, &sessions, &latency}) {
        families.push_back(family->take());
    }
}

void add_jobs(Families& families, const ShardStatistics& statistics) {
    auto blocks = counter("larder_job_blocks_total", "Blocks delivered, by where they came from");
    auto bytes = counter("larder_job_bytes_total", "Bytes delivered, by where they came from");
    auto read =
        counter("larder_job_remote_read_bytes_total", "Bytes taken from the remote, paid for by the job's limit");
    auto samples = counter("larder_job_samples_total", "Samples the training loop has taken");
    auto stall = counter("larder_job_stall_seconds_total", "Time the training loop has waited for data");
    auto epoch = gauge("larder_job_epoch", "The epoch the job is in");
    auto unread = gauge("larder_job_unread_bytes", "Bytes the job has yet to read this epoch");
    auto effective =
        gauge("larder_job_effective_cache_bytes", "Cached bytes among the bytes the job has yet to read this epoch");
    auto limit = gauge("larder_job_remote_limit_bytes_per_second", "The job's remote bandwidth; 0 is no limit");
    auto sessions = gauge("larder_job_sessions", "Loader processes connected");
    for (const JobStatistics& job : statistics.jobs) {
        const Labels labels{{"dataset", job.dataset}, {"job", job.job}};
        add_blocks(blocks, bytes, labels, job.counters);
        read.add(labels, as_double(job.counters.remote_read_bytes));
        samples.add(labels, as_double(job.samples_delivered));
        stall.add(labels, static_cast<double>(job.stall_ns) / 1e9);
        epoch.add(labels, job.epoch);
        unread.add(labels, as_double(job.unread_bytes));
        effective.add(labels, as_double(job.effective_cache_bytes));
        limit.add(labels, job.rate_limit_bytes_per_second);
        sessions.add(labels, job.sessions);
    }
    for (Family* family : {&blocks, &bytes, &read, &samples, &stall, &epoch, &unread, &effective, &limit, &sessions}) {
        families.push_back(family->take());
    }
}

void add_node(Families& families, const NodeMetrics& node, const ShardStatistics& statistics) {
    families.push_back(
        gauge("larder_node_uptime_seconds", "Seconds since the daemon started").add({}, node.uptime_seconds).take());
    families.push_back(gauge("larder_node_sessions", "Loader processes connected").add({}, node.sessions).take());
    families.push_back(
        gauge("larder_node_slot_bytes", "Memory of the sessions' slots").add({}, as_double(node.slot_bytes)).take());
    families.push_back(gauge("larder_node_capacity_bytes", "Bytes the node has for quotas, by tier")
                           .add({{"tier", "memory"}}, as_double(node.memory_bytes))
                           .add({{"tier", "disk"}}, as_double(node.disk_bytes))
                           .take());
    families.push_back(counter("larder_node_protocol_violations_total", "Sessions closed for breaking the protocol")
                           .add({}, as_double(statistics.protocol_violations))
                           .take());
    families.push_back(counter("larder_node_log_lines_dropped_total", "Log lines lost to a slow log")
                           .add({}, as_double(node.log_lines_dropped))
                           .take());
    families.push_back(counter("larder_index_commits_total", "Group commits of the index")
                           .add({}, as_double(node.index.commits))
                           .take());
    families.push_back(
        counter("larder_index_changes_lost_total", "Changes the index could not keep; found again by scan")
            .add({}, as_double(node.index.changes_lost))
            .take());
}

void add_http(Families& families, const HttpStatistics& http) {
    families.push_back(counter("larder_http_requests_total", "Requests to remotes over the network, each try counted")
                           .add({}, as_double(http.requests))
                           .take());
    families.push_back(counter("larder_http_retries_total", "Requests that failed and are retried")
                           .add({}, as_double(http.retries))
                           .take());
    families.push_back(counter("larder_http_overloads_total",
                               "503 and 429 answers and timeouts, after each of which fewer requests run at once")
                           .add({}, as_double(http.overloads))
                           .take());
    families.push_back(counter("larder_http_outages_total", "Times that a remote did not answer for a second or longer")
                           .add({}, as_double(http.outages))
                           .take());
    families.push_back(
        counter("larder_http_hedges_total", "Second requests for late ones, by which of the two was answered first")
            .add({{"first", "hedge"}}, as_double(http.hedges_won))
            .add({{"first", "other"}}, as_double(http.hedges - http.hedges_won))
            .take());
}

void add_allocator(Families& families, const AllocatorMetrics& allocator) {
    families.push_back(gauge("larder_allocator_connected", "1: the allocator answered the last report")
                           .add({}, allocator.connected ? 1 : 0)
                           .take());
    families.push_back(
        gauge("larder_allocator_plan", "Number of the plan in force here").add({}, as_double(allocator.plan)).take());
    families.push_back(
        gauge("larder_allocator_lease_left_seconds", "Seconds until the leased rates fall to their floor")
            .add({}, allocator.lease_left_seconds)
            .take());
    families.push_back(counter("larder_allocator_reports_total", "Reports to the allocator, by result")
                           .add({{"result", "answered"}}, as_double(allocator.reports))
                           .add({{"result", "failed"}}, as_double(allocator.failures))
                           .take());
}

}  // namespace

std::string metrics_text(const NodeMetrics& node, const ShardStatistics& statistics) {
    Families families;
    add_node(families, node, statistics);
    if (node.allocator) add_allocator(families, *node.allocator);
    add_http(families, node.http);
    add_datasets(families, statistics);
    add_jobs(families, statistics);
    return metrics_text_of(std::move(families));
}

}  // namespace larder::cache
