#include "allocator/service/job_history.h"

#include <array>
#include <utility>
#include <vector>

#include "allocator/rate_bound.h"

namespace larder::allocator {
namespace {

// A measured rate of at least this part of f* counts as f*, because measured rates vary.
constexpr double kMeasuredNearIdeal = 0.9;

// `last` is the job's latest sample.
JobLimit limit_under(const Cluster& cluster, std::size_t j, const RateBound& bound, const RateSample& last) {
    const ClusterJob& job = cluster.planned_state().jobs[j];
    const JobRegistration* spec = cluster.registered(job.name);
    const bool is_declared = spec != nullptr && spec->ideal_bytes_per_second;
    if (!job.ideal_is_measured && !is_declared) return {};
    const double predicted = cluster.plan().jobs[j].predicted_bytes_per_second;
    if (predicted >= kNearIdeal * job.ideal_bytes_per_second) {
        const bool is_slower = last.is_measured && last.measured < kMeasuredNearIdeal * job.ideal_bytes_per_second;
        return {.kind = is_slower ? JobLimit::Kind::unpredicted : JobLimit::Kind::compute, .node = {}};
    }
    switch (bound.kind) {
        case RateBound::Kind::network: return {.kind = JobLimit::Kind::network, .node = bound.node};
        case RateBound::Kind::disk: return {.kind = JobLimit::Kind::disk, .node = bound.node};
        case RateBound::Kind::remote: break;
    }
    return {.kind = JobLimit::Kind::remote, .node = {}};
}

}  // namespace

std::string_view name(JobLimit::Kind kind) {
    static constexpr std::array<std::string_view, 6> kNames{"compute", "unpredicted", "remote",
                                                            "network", "disk",        "unknown"};
    return kNames[static_cast<std::size_t>(kind)];
}

void JobHistory::update(const Cluster& cluster, const Observed& observed, std::int64_t now_ns, std::int64_t unix_ms) {
    if (updated_ns_ && now_ns - *updated_ns_ < kUpdate_ns) return;
    updated_ns_ = now_ns;
    ++updates_;
    const bool samples_are_due = !sampled_ns_ || now_ns - *sampled_ns_ >= kSample_ns;
    std::map<std::string, JobRate> rates;
    if (samples_are_due) {
        sampled_ns_ = now_ns;
        rates = observed.job_rates(now_ns);
    }
    const ClusterState& state = cluster.planned_state();
    const std::vector<RateBound> bounds = rate_bounds(state, cluster.plan());
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        const JobPlan& plan = cluster.plan().jobs[j];
        if (!plan.running) continue;
        const auto [found, is_new] = jobs_.try_emplace(state.jobs[j].name);
        Known& known = found->second;
        known.seen = updates_;
        if (samples_are_due || is_new) {
            const auto rate = rates.find(state.jobs[j].name);
            const bool is_measured = rate != rates.end();
            known.samples.push_back({.unix_ms = unix_ms,
                                     .ideal = static_cast<float>(state.jobs[j].ideal_bytes_per_second),
                                     .predicted = static_cast<float>(plan.predicted_bytes_per_second),
                                     .granted = static_cast<float>(plan.bandwidth_bytes_per_second),
                                     .measured = is_measured ? static_cast<float>(rate->second.bytes_per_second) : 0,
                                     .hit_ratio = static_cast<float>(plan.hit_ratio),
                                     .is_measured = is_measured});
            if (known.samples.size() > kSamplesMax) known.samples.pop_front();
        }
        JobLimit limit = limit_under(cluster, j, bounds[j], known.samples.back());
        const bool is_same = !is_new && limit.kind == known.limit.kind && limit.node == known.limit.node;
        limit.since_unix_ms = is_same ? known.limit.since_unix_ms : unix_ms;
        known.limit = std::move(limit);
    }
    std::erase_if(jobs_, [&](const auto& entry) { return entry.second.seen != updates_; });
}

const JobLimit* JobHistory::limit_of(const std::string& job) const {
    const auto found = jobs_.find(job);
    return found == jobs_.end() ? nullptr : &found->second.limit;
}

const std::deque<RateSample>* JobHistory::samples_of(const std::string& job) const {
    const auto found = jobs_.find(job);
    return found == jobs_.end() ? nullptr : &found->second.samples;
}

}  // namespace larder::allocator
