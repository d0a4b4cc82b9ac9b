#include "allocator/service/plan_watch.h"

#include <utility>

#include "base/units.h"

namespace larder::allocator {
namespace {

constexpr std::size_t kReasonsMax = 3;

std::set<std::string> names_of(const auto& things) {
    std::set<std::string> names;
    for (const auto& thing : things) names.insert(thing.name);
    return names;
}

std::set<std::string> running_jobs(const Cluster& cluster) {
    std::set<std::string> names;
    const auto& jobs = cluster.planned_state().jobs;
    for (std::size_t j = 0; j < jobs.size(); ++j) {
        if (cluster.plan().jobs[j].running) names.insert(jobs[j].name);
    }
    return names;
}

std::string joined(const std::vector<std::string>& reasons, std::size_t more) {
    std::string text;
    for (std::size_t i = 0; i < reasons.size(); ++i) text += (i == 0 ? "" : ", ") + reasons[i];
    if (more > 0) text += " and " + std::to_string(more) + " more";
    return text;
}

}  // namespace

void PlanWatch::add_reason(std::string reason) {
    if (reasons_.size() == kReasonsMax) {
        ++more_reasons_;
        return;
    }
    reasons_.push_back(std::move(reason));
}

void PlanWatch::compare_names(std::set<std::string>& known, std::set<std::string> now, EventKind appeared,
                              EventKind gone, const std::string& what) {
    for (const std::string& name : now) {
        if (known.contains(name)) continue;
        events_.add(appeared, name, what + " \"" + name + "\" reports");
        add_reason(what + " " + name + " came");
    }
    for (const std::string& name : known) {
        if (now.contains(name)) continue;
        events_.add(gone, name, what + " \"" + name + "\" no longer reports");
        add_reason(what + " " + name + " went");
    }
    known = std::move(now);
}

void PlanWatch::compare_with_last(const Cluster& cluster, std::int64_t now_ns) {
    const ClusterState& state = cluster.planned_state();
    compare_names(nodes_, names_of(state.nodes), EventKind::node_came, EventKind::node_gone, "node");
    compare_names(jobs_, running_jobs(cluster), EventKind::job_seen, EventKind::job_gone, "job");
    if (cluster.plan_number() == plan_) return;
    plan_ = cluster.plan_number();
    std::map<std::string, std::uint64_t> quotas;
    std::size_t changed = 0;
    for (std::size_t i = 0; i < state.datasets.size(); ++i) {
        const std::uint64_t bytes = cluster.plan().datasets[i].quota_bytes;
        const auto before = quotas_.find(state.datasets[i].name);
        if (before == quotas_.end() || before->second != bytes) ++changed;
        quotas[state.datasets[i].name] = bytes;
    }
    quotas_ = std::move(quotas);
    std::string message = "plan " + std::to_string(plan_);
    if (changed > 0) {
        message += ": quotas of " + std::to_string(changed) + (changed == 1 ? " dataset" : " datasets") + ", " +
                   format_bytes(cluster.plan().moved_bytes) + " to fetch";
    } else {
        message += ": rates only";
    }
    if (reasons_.empty()) {
        // This repeats as long as caches fill and epochs advance.
        events_.add_seldom(EventKind::plan_changed, "", message + "; because of the nodes' reports", now_ns);
    } else {
        events_.add(EventKind::plan_changed, "", message + "; because " + joined(reasons_, more_reasons_));
    }
    reasons_.clear();
    more_reasons_ = 0;
}

}  // namespace larder::allocator
