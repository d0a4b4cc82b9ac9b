#include "allocator/service/observed.h"

#include <algorithm>

namespace larder::allocator {
namespace {

// A lease below this fraction of the wanted rates is short. Other nodes' floors, which no plan counts, always cut a
// lease a little.
constexpr double kShortFraction = 0.9;

}  // namespace

void Observed::add_sample(Window& window, const Sample& sample) {
    if (!window.empty()) {
        const Sample& last = window.back();
        const bool counters_continue = sample.bytes >= last.bytes && sample.busy_s >= last.busy_s &&
                                       sample.ranks == last.ranks &&
                                       sample.remote_bytes.has_value() == last.remote_bytes.has_value() &&
                                       sample.remote_bytes.value_or(0) >= last.remote_bytes.value_or(0);
        if (!counters_continue) window.clear();
    }
    // Two reports at one time have no rate between them, so the later one replaces the earlier.
    if (!window.empty() && window.back().at_ns >= sample.at_ns) window.pop_back();
    window.push_back(sample);
    // One sample from before the window is kept, so that reports far apart have a rate too.
    while (window.size() > 2 && sample.at_ns - window[1].at_ns >= kWindow_ns) window.pop_front();
}

void Observed::report(const NodeReport& report, std::int64_t now_ns) {
    KnownNode& node = nodes_[report.node];
    if (node.instance != report.instance) node.jobs.clear();
    node.instance = report.instance;
    std::map<std::string, Window> jobs;
    for (const JobReport& job : report.jobs) {
        const auto found = node.jobs.find(job.name);
        Window& window = jobs[job.name];
        if (found != node.jobs.end()) window = std::move(found->second);
        add_sample(window, {.at_ns = now_ns,
                            .bytes = job.bytes,
                            .busy_s = job.busy_s,
                            .ranks = job.ranks,
                            .remote_bytes = job.remote_bytes});
    }
    node.jobs = std::move(jobs);
}

void Observed::leased(const std::string& node, const Lease& lease, std::int64_t now_ns) {
    std::optional<LeaseView>& last = nodes_[node].lease;
    std::optional<std::int64_t> short_since_ns;
    if (lease.sum() < kShortFraction * lease.wanted_bytes_per_second) {
        short_since_ns = last && last->short_since_ns ? *last->short_since_ns : now_ns;
    }
    last = LeaseView{.number = lease.number,
                     .granted_ns = now_ns,
                     .expires_ns = lease.expires_ns,
                     .bytes_per_second = lease.sum(),
                     .cut = lease.cut,
                     .short_since_ns = short_since_ns};
}

std::map<std::string, JobRate> Observed::job_rates(std::int64_t now_ns) const {
    struct Sums {
        double rate = 0;
        std::optional<double> remote_rate = 0;
        double loops_s = 0;
        double busy_s = 0;
    };
    std::map<std::string, Sums> sums;
    for (const auto& [name, node] : nodes_) {
        for (const auto& [job, window] : node.jobs) {
            if (window.size() < 2 || now_ns - window.back().at_ns > kSilent_ns) continue;
            const double seconds = static_cast<double>(window.back().at_ns - window.front().at_ns) / 1e9;
            Sums& sum = sums[job];
            sum.rate += static_cast<double>(window.back().bytes - window.front().bytes) / seconds;
            if (!window.back().remote_bytes) sum.remote_rate.reset();
            if (sum.remote_rate) {
                *sum.remote_rate +=
                    static_cast<double>(*window.back().remote_bytes - *window.front().remote_bytes) / seconds;
            }
            sum.loops_s += seconds * window.back().ranks;
            sum.busy_s += window.back().busy_s - window.front().busy_s;
        }
    }
    std::map<std::string, JobRate> rates;
    for (const auto& [job, sum] : sums) {
        const double waited = sum.loops_s > 0 ? 1 - sum.busy_s / sum.loops_s : 0;
        rates[job] = {.bytes_per_second = sum.rate,
                      .stall_ratio = std::clamp(waited, 0.0, 1.0),
                      .remote_bytes_per_second = sum.remote_rate};
    }
    return rates;
}

std::optional<LeaseView> Observed::lease_of(const std::string& node) const {
    const auto found = nodes_.find(node);
    return found == nodes_.end() ? std::nullopt : found->second.lease;
}

}  // namespace larder::allocator
