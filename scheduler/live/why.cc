#include "scheduler/live/why.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "base/units.h"

namespace larder::scheduler {
namespace {

constexpr std::size_t kNamedMax = 5;

std::string duration_text(double seconds) {
    return format_duration_ns(static_cast<std::int64_t>(std::clamp(seconds, 0.0, 1e9) * 1e9));
}

std::string gpus(std::uint64_t count) {
    return std::to_string(count) + (count == 1 ? " GPU" : " GPUs");
}

std::string asked_for(const JobRecord& job) {
    const Submission& asked = job.asked;
    std::string text = asked.least_gpus() < asked.gpus
                           ? std::to_string(asked.least_gpus()) + " to " + gpus(asked.most_gpus())
                           : gpus(asked.gpus);
    if (!asked.gpu_type.empty()) text += " of type " + asked.gpu_type;
    if (asked.opportunistic) text += " that no job with a claim uses";
    return text;
}

// Returns a text such as "4 (bert): 8 GPUs, tenant vision, ends in about 2h 05m".
std::string holder_text(const JobRecord& job, const WhyContext& context) {
    std::string text = title(job) + ": " + gpus(job.held->count) + ", tenant " + job.asked.tenant;
    const auto rates = context.view.jobs.find(job.asked.name);
    const bool known = rates != context.view.jobs.end() && rates->second.predicted > 0;
    if (job.phase == Phase::stopping) {
        text += ", is being stopped";
    } else if (known && std::isfinite(job.remaining_bytes())) {
        text += ", ends in about " + duration_text(job.remaining_bytes() / rates->second.predicted);
    }
    return text;
}

std::string holders_text(const JobRecord& waiting, const WhyContext& context, bool of_tenant) {
    std::string text;
    std::size_t more = 0;
    for (const JobId id : context.queue.active()) {
        const JobRecord& job = context.queue.jobs().at(id);
        if (!job.held || id == waiting.id || (of_tenant && job.asked.tenant != waiting.asked.tenant)) continue;
        if (text.empty() || more == 0) {
            if (std::ranges::count(text, ';') + 1 >= static_cast<std::ptrdiff_t>(kNamedMax)) {
                ++more;
            } else {
                text += (text.empty() ? "" : "; ") + holder_text(job, context);
            }
        } else {
            ++more;
        }
    }
    if (more > 0) text += "; and " + std::to_string(more) + " more";
    return text.empty() ? "nobody" : text;
}

struct Free {
    std::uint64_t free = 0;
    std::uint64_t all = 0;
    std::uint64_t drained = 0;  // on nodes that operators have drained
    std::set<std::string_view> drained_nodes;
    std::uint64_t lost = 0;  // on other nodes that are not usable
};

Free free_gpus(const JobRecord& job, const WhyContext& context) {
    Free sum;
    for (std::uint32_t type = 0; type < context.cluster.gpu_types.size(); ++type) {
        if (!job.asked.gpu_type.empty() && job.asked.gpu_type != context.cluster.gpu_types[type]) continue;
        sum.free += context.placer.free_gpus(type);
        for (const GpuNode& node : context.cluster.nodes) {
            if (node.gpu_type != type) continue;
            sum.all += node.gpus;
            if (node.usable) continue;
            const bool is_drained = context.drains.contains(node.name);
            (is_drained ? sum.drained : sum.lost) += node.gpus;
            if (is_drained && node.gpus > 0) sum.drained_nodes.insert(node.name);
        }
    }
    return sum;
}

// Returns a text such as "2 drained nodes (n1, n2)".
std::string drained_text(const std::set<std::string_view>& nodes) {
    std::string names;
    std::size_t named = 0;
    for (const std::string_view node : nodes) {
        if (++named > kNamedMax) break;
        names += (names.empty() ? "" : ", ") + std::string(node);
    }
    if (nodes.size() > kNamedMax) names += " and " + std::to_string(nodes.size() - kNamedMax) + " more";
    return std::to_string(nodes.size()) + (nodes.size() == 1 ? " drained node (" : " drained nodes (") + names + ")";
}

std::uint64_t waiting_before(const JobRecord& job, const WhyContext& context) {
    std::uint64_t before = 0;
    for (const JobId id : context.queue.active()) {
        const JobRecord& other = context.queue.jobs().at(id);
        if (other.phase == Phase::waiting && other.after.empty() && id < job.id) ++before;
    }
    return before;
}

std::uint64_t place_of(const JobRecord& job, const WhyContext& context) {
    std::uint64_t place = 1;
    for (const JobId id : context.queue.active()) {
        const JobRecord& other = context.queue.jobs().at(id);
        if (other.phase != Phase::waiting || !other.after.empty()) continue;
        if (std::pair(-other.asked.priority, other.id) < std::pair(-job.asked.priority, job.id)) ++place;
    }
    return place;
}

// Returns the GPUs of an allotment that others get when its job ends.
std::uint32_t usable_gpus(const Allotment& held, const WhyContext& context) {
    std::uint32_t count = 0;
    for (const NamedGpus& share : held.gpus) {
        const auto nodes = context.queue.nodes_named(share.node);
        const bool is_usable =
            std::ranges::any_of(nodes, [&](std::uint32_t n) { return context.cluster.nodes[n].usable; });
        if (is_usable) count += static_cast<std::uint32_t>(std::popcount(share.gpus));
    }
    return count;
}

// Returns when enough GPUs are free for the job, as if no other job waited; nullopt if too few of those that have them
// have a known end.
std::optional<double> earliest_start_s(const JobRecord& job, const WhyContext& context) {
    const auto fits = [&](const std::string& type) { return job.asked.gpu_type.empty() || job.asked.gpu_type == type; };
    std::uint64_t free = free_gpus(job, context).free;
    std::vector<std::pair<double, std::uint32_t>> ends;  // and the GPUs that they free
    for (const JobId id : context.queue.holders()) {
        const JobRecord& holder = context.queue.jobs().at(id);
        if (!holder.held || !fits(holder.held->gpu_type) || holder.held->packed_with) continue;
        const auto rates = context.view.jobs.find(holder.asked.name);
        if (rates == context.view.jobs.end() || rates->second.predicted <= 0) continue;
        if (!std::isfinite(holder.remaining_bytes())) continue;
        ends.emplace_back(context.now_s + holder.remaining_bytes() / rates->second.predicted,
                          usable_gpus(*holder.held, context));
    }
    std::ranges::sort(ends);
    double start_s = std::max(context.now_s, job.not_before_s);
    for (const auto& [end_s, gpus] : ends) {
        if (free >= job.asked.least_gpus()) break;
        free += gpus;
        start_s = std::max(start_s, end_s);
    }
    if (free < job.asked.least_gpus()) return std::nullopt;
    return start_s;
}

Why why_waiting(const JobRecord& job, const WhyContext& context) {
    const std::string begin =
        "Job " + title(job) + " has waited " + duration_text(context.now_s - job.state.waiting_since_s) + " for ";
    if (job.not_before_s > context.now_s) {
        return {"engine", "Job " + title(job) + " did not begin when it was last placed" +
                              (job.pending_for.empty() ? "" : ": " + job.pending_for) + "; it is placed again in " +
                              duration_text(job.not_before_s - context.now_s) + " at the earliest."};
    }
    if (job.held_back_until_s > context.now_s) {
        return {"engine", "Job " + title(job) + " is not placed, because the cluster manager has rejected a job for " +
                              "which the same limit holds: " + job.pending_for + "; it is placed in " +
                              duration_text(job.held_back_until_s - context.now_s) +
                              " at the earliest, or once a job " + "of tenant " + job.asked.tenant + " has ended."};
    }
    if (!job.after.empty()) {
        std::string text;
        for (const JobId id : job.after) {
            const JobRecord& other = context.queue.jobs().at(id);
            text += (text.empty() ? "" : ", ") + title(other) + ", which is " + std::string(name(other.phase));
        }
        return {"dependencies", begin + "the success of job " + text + "."};
    }
    const Free counts = free_gpus(job, context);
    const std::string state =
        gpus(counts.free) + " of " + std::to_string(counts.all) + " are free" +
        (counts.drained > 0 ? ", " + std::to_string(counts.drained) + " are on " + drained_text(counts.drained_nodes)
                            : "") +
        (counts.lost > 0 ? ", " + std::to_string(counts.lost) + " are on lost or drained nodes" : "");
    switch (job.waits_for) {
        case WaitsFor::gpus:
            return {"gpus", begin + "GPUs: it needs " + asked_for(job) + " at once, and " + state +
                                ". They are held by " + holders_text(job, context, false) + "."};
        case WaitsFor::place:
            return {"place", begin + "a place: it needs " + asked_for(job) + ", and " + state +
                                 ", but not together where it may use them. The other GPUs are held by " +
                                 holders_text(job, context, false) + "."};
        case WaitsFor::quota: {
            const auto tenant = std::ranges::find(context.tenants, job.asked.tenant, &Tenant::name);
            const std::string most = tenant == context.tenants.end() || tenant->gpu_quota == kAllGpus
                                         ? "has used up the quota of a tenant above it"
                                         : "may have " + gpus(tenant->gpu_quota) + " at a time";
            return {"quota", begin + "its tenant's quota: tenant " + job.asked.tenant + " " + most + ", it needs " +
                                 asked_for(job) + ", and the tenant's are held by " + holders_text(job, context, true) +
                                 ". In the cluster " + state + "."};
        }
        case WaitsFor::deadline:
            return {"deadline", begin + "better times: policy " + std::string(context.policy) +
                                    " finds no way to meet its deadline, which is in " +
                                    duration_text(job.asked.deadline_s.value_or(0) - context.now_s) +
                                    " without breaking promises to other jobs."};
        case WaitsFor::never_fits:
            return {"capacity",
                    begin + "more GPUs than there are: it needs " + asked_for(job) + ", and " + state + "."};
        case WaitsFor::turn:
        case WaitsFor::nothing: break;
    }
    return {"turn", begin + "its turn: it needs " + asked_for(job) + ", and " + state + ", but policy " +
                        std::string(context.policy) + " puts other jobs first; " +
                        std::to_string(waiting_before(job, context)) +
                        " waiting jobs were submitted before it, and GPUs are held by " +
                        holders_text(job, context, false) + "."};
}

std::string_view binding_of(const allocator::RateBound& bound) {
    switch (bound.kind) {
        case allocator::RateBound::Kind::network: return "network";
        case allocator::RateBound::Kind::disk: return "disk";
        case allocator::RateBound::Kind::remote: break;
    }
    return "remote_bandwidth";
}

std::string text_of(const allocator::RateBound& bound) {
    if (bound.kind == allocator::RateBound::Kind::remote) return "remote bandwidth";
    return "the " + std::string(binding_of(bound)) + " of node " + bound.node;
}

// Explains what limits the rate: f = min(f*, b / (1 - h)), within what nodes' networks and disks carry.
Why why_running(const JobRecord& job, const WhyContext& context) {
    const std::string begin =
        "Job " + title(job) + " has run " + duration_text(context.now_s - job.state.started_s) + " on " +
        text_of(*job.held) + ", attempt " + std::to_string(job.attempt) +
        (job.next ? ", and is to have " + text_of(*job.next) + " without a restart" +
                        (job.is_resizing ? "" : " once the jobs that have these GPUs have given them up")
                  : "");
    const auto found = context.view.jobs.find(job.asked.name);
    if (found == context.view.jobs.end()) {
        const std::string output =
            context.output.empty() ? "" : " Its output is in " + std::string(context.output) + ".";
        return {"gpus", begin + "; no node reports that it reads, so only its GPUs are known to limit it." + output};
    }
    const JobRates& rates = found->second;
    // Otherwise the plan assumes that the job could use all of the remote's bandwidth.
    const bool ideal_is_known = rates.ideal_is_measured || !job.asked.ideal_by_type.empty();
    const std::string ideal = format_bytes_per_second(rates.ideal) + (rates.ideal_is_measured ? " measured" : "");
    const bool at_ideal = rates.predicted >= allocator::kNearIdeal * rates.ideal;
    const std::string by_plan = "by the plan it reads " + format_bytes_per_second(rates.predicted) +
                                (ideal_is_known ? " of f* " + ideal : "") + ", with " +
                                format_bytes_per_second(rates.granted) + " of remote bandwidth and " +
                                std::to_string(std::lround(100 * rates.hit_ratio)) + " % of hits";
    std::string_view binding = binding_of(context.bound);
    std::string speed;
    if (!ideal_is_known) {
        speed = "; its f* is not known yet, as it was neither declared nor measured: " + by_plan;
    } else if (at_ideal) {
        speed = "; it reads as fast as its GPUs can use data (f* " + ideal + ")";
        binding = "gpus";
    } else {
        speed = "; " + text_of(context.bound) + " limits it: " + by_plan;
    }
    std::string left;
    if (std::isfinite(job.remaining_bytes()) && rates.predicted > 0) {
        left = ", and has about " + duration_text(job.remaining_bytes() / rates.predicted) + " left";
    }
    return {binding, begin + speed + left + "."};
}

}  // namespace

std::string_view text_of(WaitsFor why) {
    switch (why) {
        case WaitsFor::nothing: return "waits for nothing";
        case WaitsFor::gpus: return "waits: too few GPUs are free";
        case WaitsFor::place: return "waits: GPUs are free, but not where it may use them";
        case WaitsFor::turn: return "waits: other jobs come first";
        case WaitsFor::quota: return "waits: its tenant's quota is used up";
        case WaitsFor::deadline: return "waits: its deadline cannot be met without breaking promises to other jobs";
        case WaitsFor::never_fits: return "waits: it needs more GPUs than there are at present";
    }
    return "waits";
}

Why why(const JobRecord& job, const WhyContext& context) {
    const std::string who = "Job " + title(job);
    switch (job.phase) {
        case Phase::waiting: {
            Why waiting = why_waiting(job, context);
            if (!job.after.empty()) return waiting;
            waiting.place = place_of(job, context);
            if (job.waits_for != WaitsFor::quota && job.waits_for != WaitsFor::deadline) {
                waiting.starts_unix_s = earliest_start_s(job, context);
            }
            return waiting;
        }
        case Phase::placed: {
            std::string stopping;
            for (const JobId id : context.queue.active()) {
                const JobRecord& other = context.queue.jobs().at(id);
                if (other.phase == Phase::stopping) stopping += (stopping.empty() ? "" : ", ") + title(other);
            }
            return {"gpus", who + " has its GPUs, " + text_of(*job.held) +
                                ", and starts when the jobs that had them have ended: " +
                                (stopping.empty() ? "any moment" : stopping) + "."};
        }
        case Phase::starting:
            return {"engine", who + " is being started on " + text_of(*job.held) + ", attempt " +
                                  std::to_string(job.attempt) +
                                  (job.pending_for.empty() ? "" : "; it is pending: " + job.pending_for) + "."};
        case Phase::running: return why_running(job, context);
        case Phase::stopping:
            return {"engine", who + " was asked to end (" + std::string(name(job.stop_cause)) + ") and is killed " +
                                  duration_text(job.asked.grace_s) + " after that" +
                                  (job.next ? "; then it continues on " + text_of(*job.next) : "") + "."};
        case Phase::succeeded:
        case Phase::failed:
        case Phase::cancelled: break;
    }
    return {"nothing", who + (job.phase == Phase::cancelled ? " was " : " ") + std::string(name(job.phase)) + " " +
                           duration_text(context.now_s - job.ended_s) + " ago: " + job.end_reason + "."};
}

}  // namespace larder::scheduler
