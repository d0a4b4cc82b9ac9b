#include "allocator/service/allocator_metrics.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/server/metric_family.h"

namespace larder::allocator {
namespace {

using Families = std::vector<prometheus::MetricFamily>;
using Labels = MetricLabels;

double number(std::uint64_t value) {
    return static_cast<double>(value);
}

double seconds(std::int64_t duration_ns) {
    return static_cast<double>(std::max<std::int64_t>(0, duration_ns)) / 1e9;
}

prometheus::MetricFamily leads(bool leads) {
    return metric_gauge("larder_allocator_leads", "1 if this allocator serves, 0 if it stands by for another one")
        .add({}, leads ? 1 : 0)
        .take();
}

void add_service(Families& families, const Cluster& cluster, const EventLog& events, const ServiceCounts& counts,
                 std::int64_t now_ns, std::int64_t uptime_ns) {
    families.push_back(leads(true));
    families.push_back(metric_gauge("larder_allocator_uptime_seconds", "Seconds since the allocator started")
                           .add({}, seconds(uptime_ns))
                           .take());
    families.push_back(metric_counter("larder_reports_total", "Reports of nodes, by result")
                           .add({{"result", "taken"}}, number(counts.reports_taken))
                           .add({{"result", "refused"}}, number(counts.reports_refused))
                           .take());
    families.push_back(metric_counter("larder_plan_changes_total", "Plans that differed from the previous plan")
                           .add({}, number(cluster.plan_number()))
                           .take());
    families.push_back(metric_counter("larder_plan_failures_total", "Plans that could not be made")
                           .add({}, number(counts.plans_failed))
                           .take());
    families.push_back(metric_histogram("larder_plan_duration_seconds", "Time to make a plan")
                           .add({}, ServiceCounts::kPlanSeconds, counts.plans, counts.plans_s)
                           .take());
    auto events_by_kind = metric_counter("larder_events_total", "Events, by kind");
    for (std::size_t i = 0; i < kEventKinds; ++i) {
        const auto kind = static_cast<EventKind>(i);
        events_by_kind.add({{"kind", std::string(name(kind))}}, number(events.count(kind)));
    }
    families.push_back(events_by_kind.take());
    families.push_back(metric_gauge("larder_remote_bytes_per_second", "Remote bandwidth of all jobs together")
                           .add({}, cluster.options().remote_bytes_per_second)
                           .take());
    families.push_back(
        metric_gauge("larder_leases_bytes_per_second", "Remote bandwidth that all nodes together may be using now")
            .add({}, cluster.in_force(now_ns))
            .take());
    families.push_back(metric_gauge("larder_plan_steady_remote_bytes_per_second",
                                    "Remote bandwidth that all jobs use once caches are filled")
                           .add({}, cluster.plan().steady_remote_bytes_per_second)
                           .take());
    families.push_back(metric_gauge("larder_plan_moved_bytes", "Bytes that the quotas make nodes fetch")
                           .add({}, number(cluster.plan().moved_bytes))
                           .take());
}

void add_nodes(Families& families, const std::vector<NodeView>& nodes) {
    auto alive = metric_gauge("larder_plan_node_alive", "1 while the node reports and is part of the plan");
    auto report = metric_gauge("larder_plan_node_report_age_seconds", "Seconds since the node's last report");
    auto age = metric_gauge("larder_lease_age_seconds", "Seconds since the node was last given a lease");
    auto leased = metric_gauge("larder_lease_bytes_per_second",
                               "Remote bandwidth that the node's last lease grants all its jobs");
    auto capacity = metric_gauge("larder_plan_node_capacity_bytes", "Bytes the node has for quotas, by tier");
    auto quota = metric_gauge("larder_plan_node_quota_bytes", "Bytes of the node's cache given to datasets, by tier");
    auto used = metric_gauge("larder_plan_node_used_bytes", "Bytes of the node's cache that are filled, by tier");
    for (const NodeView& node : nodes) {
        const Labels labels{{"node", node.name}};
        alive.add(labels, node.alive ? 1 : 0);
        report.add(labels, seconds(node.heard_ago_ns));
        if (node.lease) {
            age.add(labels, seconds(node.lease_age_ns));
            leased.add(labels, node.lease->bytes_per_second);
        }
        const auto add_tiers = [&](MetricFamily& family, const TierBytes& bytes) {
            family.add({{"node", node.name}, {"tier", "memory"}}, number(bytes.memory_bytes));
            family.add({{"node", node.name}, {"tier", "disk"}}, number(bytes.disk_bytes));
        };
        add_tiers(capacity, node.capacity);
        add_tiers(quota, node.quota);
        add_tiers(used, node.used);
    }
    for (MetricFamily* family : {&alive, &report, &age, &leased, &capacity, &quota, &used}) {
        families.push_back(family->take());
    }
}

void add_datasets(Families& families, const std::vector<DatasetView>& datasets) {
    auto size = metric_gauge("larder_plan_dataset_size_bytes", "The dataset's size");
    auto quota = metric_gauge("larder_plan_dataset_quota_bytes", "Cache the plan gives the dataset, over all nodes");
    auto cached =
        metric_gauge("larder_plan_dataset_cached_bytes", "Bytes of the dataset that are cached, over all nodes");
    auto effective = metric_gauge("larder_plan_dataset_effective_bytes",
                                  "Cached bytes that the dataset's jobs can still hit, on average over the jobs");
    auto pinned = metric_gauge("larder_plan_dataset_pinned_bytes", "The quota an operator has fixed");
    auto grant = metric_gauge("larder_plan_dataset_grant_bytes_per_second",
                              "Remote bandwidth granted to all of the dataset's jobs together");
    for (const DatasetView& dataset : datasets) {
        const Labels labels{{"dataset", dataset.name}};
        size.add(labels, number(dataset.size_bytes));
        quota.add(labels, number(dataset.quota_bytes));
        cached.add(labels, number(dataset.cached_bytes));
        effective.add(labels, number(dataset.effective_bytes));
        if (dataset.pinned_bytes) pinned.add(labels, number(*dataset.pinned_bytes));
        grant.add(labels, dataset.granted_bytes_per_second);
    }
    for (MetricFamily* family : {&size, &quota, &cached, &effective, &pinned, &grant}) {
        families.push_back(family->take());
    }
}

void add_jobs(Families& families, const std::vector<JobView>& jobs) {
    auto ideal =
        metric_gauge("larder_plan_job_ideal_bytes_per_second", "f*: the job's rate if it never waited for data");
    auto share =
        metric_gauge("larder_plan_job_equal_share_bytes_per_second", "The job's rate under an equal share of all");
    auto grant = metric_gauge("larder_plan_job_grant_bytes_per_second", "Remote bandwidth granted to the job");
    auto hits = metric_gauge("larder_plan_job_hit_ratio", "Hit ratio predicted for the rest of the job's epoch");
    auto predicted =
        metric_gauge("larder_plan_job_predicted_bytes_per_second", "The rate the job is predicted to read at");
    auto steady = metric_gauge("larder_plan_job_steady_bytes_per_second",
                               "The rate the job is predicted to read at once caches are filled");
    auto measured = metric_gauge("larder_plan_job_measured_bytes_per_second", "The rate the job has read at lately");
    auto remote =
        metric_gauge("larder_plan_job_remote_bytes_per_second", "The rate the job has read from the remote at lately");
    auto stall =
        metric_gauge("larder_plan_job_stall_ratio", "The fraction of its time the job has waited for data lately");
    auto error =
        metric_gauge("larder_plan_job_prediction_error_ratio", "Measured rate divided by predicted rate, minus 1");
    for (const JobView& job : jobs) {
        if (!job.running) continue;
        const Labels labels{{"dataset", job.dataset}, {"job", job.name}};
        ideal.add(labels, job.ideal_bytes_per_second);
        share.add(labels, job.plan.equal_share_bytes_per_second);
        grant.add(labels, job.plan.bandwidth_bytes_per_second);
        hits.add(labels, job.plan.hit_ratio);
        predicted.add(labels, job.plan.predicted_bytes_per_second);
        steady.add(labels, job.plan.steady_bytes_per_second);
        if (job.measured) {
            measured.add(labels, job.measured->bytes_per_second);
            stall.add(labels, job.measured->stall_ratio);
            if (job.measured->remote_bytes_per_second) remote.add(labels, *job.measured->remote_bytes_per_second);
        }
        if (const auto part = job.prediction_error()) error.add(labels, *part);
    }
    for (MetricFamily* family :
         {&ideal, &share, &grant, &hits, &predicted, &steady, &measured, &remote, &stall, &error}) {
        families.push_back(family->take());
    }
}

}  // namespace

void ServiceCounts::add_plan(std::int64_t took_ns) {
    const auto found = std::ranges::lower_bound(kPlanSeconds, seconds(took_ns));
    ++plans[static_cast<std::size_t>(found - kPlanSeconds.begin())];
    plans_s += seconds(took_ns);
}

std::string metrics_text(const ClusterView& view, const Cluster& cluster, const EventLog& events,
                         const ServiceCounts& counts, std::int64_t now_ns, std::int64_t uptime_ns) {
    Families families;
    add_service(families, cluster, events, counts, now_ns, uptime_ns);
    add_nodes(families, view.nodes);
    add_datasets(families, view.datasets);
    add_jobs(families, view.jobs);
    return metrics_text_of(std::move(families));
}

std::string standby_metrics_text() {
    return metrics_text_of({leads(false)});
}

}  // namespace larder::allocator
