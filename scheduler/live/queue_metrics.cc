// The Prometheus metrics of submitted jobs.

#include <array>
#include <map>
#include <string>

#include "base/server/metric_family.h"
#include "scheduler/live/queue_api.h"

namespace larder::scheduler {

std::string queue_metrics(const LiveScheduler& scheduler) {
    const JobQueue& queue = scheduler.queue();
    const LiveScheduler::Counts& counts = scheduler.counts();
    const auto number = [](auto value) { return static_cast<double>(value); };

    std::array<std::uint64_t, kPhases> by_phase{};
    std::map<std::string, double> gpus_by_tenant;
    for (const Tenant& tenant : scheduler.options().tenants) gpus_by_tenant[tenant.name] = 0;
    for (const JobId id : queue.active()) {
        const JobRecord& job = queue.jobs().at(id);
        ++by_phase[static_cast<std::size_t>(job.phase)];
        if (job.held) gpus_by_tenant[job.asked.tenant] += job.in_use().count;
    }
    auto jobs = metric_gauge("larder_queue_jobs", "Submitted jobs that have not ended, by state");
    for (std::size_t phase = 0; phase < static_cast<std::size_t>(Phase::succeeded); ++phase) {
        jobs.add({{"state", std::string(name(static_cast<Phase>(phase)))}}, number(by_phase[phase]));
    }
    auto held = metric_gauge("larder_queue_gpus", "GPUs that jobs hold, by tenant");
    for (const auto& [tenant, gpus] : gpus_by_tenant) held.add({{"tenant", tenant}}, gpus);
    auto usable = metric_gauge("larder_queue_node_gpus", "GPUs of a node that can be used, by node");
    std::map<std::string, double> gpus_by_machine;
    for (const GpuNode& node : scheduler.options().cluster.nodes) {
        const bool is_gone = scheduler.options().cluster.is_open && !scheduler.inventory().contains(node.name);
        if (!is_gone) gpus_by_machine[node.name] += node.usable ? node.gpus : 0;
    }
    for (const auto& [node, gpus] : gpus_by_machine) usable.add({{"node", node}}, gpus);
    std::map<std::string, double> doomed_by_tenant;
    for (const Tenant& tenant : scheduler.options().tenants) doomed_by_tenant[tenant.name] = 0;
    for (const DoomedCells& cells : scheduler.options().placer->doomed_cells()) {
        doomed_by_tenant[cells.tenant] += cells.count;
    }
    auto doomed = metric_gauge("larder_queue_doomed_cells",
                               "Cells that their tenant cannot have until nodes are back, by tenant");
    for (const auto& [tenant, cells] : doomed_by_tenant) doomed.add({{"tenant", tenant}}, cells);
    auto ended = metric_counter("larder_queue_ended_total", "Jobs that have ended, by outcome");
    for (const Phase outcome : {Phase::succeeded, Phase::failed, Phase::cancelled}) {
        const auto count = queue.counts().ended.find(outcome);
        ended.add({{"state", std::string(name(outcome))}},
                  number(count == queue.counts().ended.end() ? 0 : count->second));
    }
    const auto counter = [&](const char* what, const char* help, std::uint64_t value) {
        return metric_counter(what, help).add({}, number(value)).take();
    };
    return metrics_text_of(
        {jobs.take(), held.take(), usable.take(), doomed.take(), ended.take(),
         counter("larder_queue_submitted_total", "Jobs that were submitted", queue.counts().submitted),
         counter("larder_queue_starts_total", "Attempts at running a job", queue.counts().starts),
         counter("larder_queue_preemptions_total", "Jobs stopped for others, or moved", queue.counts().preemptions),
         counter("larder_queue_resizes_total", "Running attempts that went on with other GPUs", queue.counts().resizes),
         counter("larder_queue_lost_total", "Attempts that were lost or stopped from outside", queue.counts().lost),
         counter("larder_queue_evictions_total", "Attempts that the cluster manager ended for reasons of its own",
                 queue.counts().evictions),
         counter("larder_queue_rejections_total", "Attempts that the engine did not begin", queue.counts().rejections),
         counter("larder_queue_decision_failures_total", "Decisions the policy could not make",
                 counts.decisions_failed),
         counter("larder_queue_save_failures_total", "Changes that could not be saved", counts.saves_failed),
         counter("larder_queue_decisions_total", "Decisions of the policy", counts.decisions),
         metric_histogram("larder_queue_wait_seconds", "Time from submission to the first start")
             .add({}, LiveScheduler::kWaitSeconds, counts.waits, counts.waits_s)
             .take()});
}

}  // namespace larder::scheduler
