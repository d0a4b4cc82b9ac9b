#include "allocator/cluster.h"

#include <boost/unordered/unordered_flat_map.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "allocator/user_shares.h"
#include "base/nearest_name.h"
#include "base/server/http_target.h"
#include "base/units.h"

namespace larder::allocator {
namespace {

constexpr std::size_t kNameBytesMax = 255;
constexpr std::uint64_t kLeaseNumberMax = std::uint64_t{1} << 62;   // far above any number a ledger reaches
constexpr std::size_t kRatesAtOnceMax = 90;                         // records in a change, which etcd takes at once
constexpr double kSameFloor = 1e-9;                                 // a rise by so small a part is rounding
constexpr std::uint64_t kMicrosecondsEnd = std::uint64_t{1} << 50;  // 35 years: sums and nanoseconds stay exact
constexpr std::int64_t kNoted_ns = 10'000'000'000;                  // counters on record are at most so old
constexpr std::uint64_t kRanksMax = 1 << 16;                        // per node: sums over all nodes stay exact

Result<void> wrong(const std::string& field, const std::string& why) {
    return fail(ErrorCode::invalid_argument, field + ": " + why);
}

Result<void> check_name(const std::string& field, std::string_view name) {
    if (name.empty() || name.size() > kNameBytesMax) {
        return wrong(field, "must have 1 to " + std::to_string(kNameBytesMax) + " bytes");
    }
    return {};
}

// Parentheses mark names that no job can have by itself.
Result<void> check_job_name(const std::string& field, std::string_view name) {
    if (name.find_first_of("()") != std::string_view::npos) return wrong(field, "has a parenthesis");
    return check_name(field, name);
}

constexpr std::string_view kUserMark = " (user ";

std::string name_for_user(const std::string& job, std::uint32_t user) {
    return job + std::string(kUserMark) + std::to_string(user) + ")";
}

// Returns the name that a job has on its nodes.
std::string name_on_nodes(const std::string& job) {
    return job.substr(0, job.find(kUserMark));
}

// True unless both are known and differ.
bool may_be_same(const std::optional<std::uint32_t>& user, const std::optional<std::uint32_t>& other) {
    return !user || !other || *user == *other;
}

Result<void> check_number(const std::string& field, double value, bool may_be_unlimited) {
    if (std::isnan(value) || (std::isinf(value) && !may_be_unlimited)) return wrong(field, "is not finite");
    if (value < 0) return wrong(field, "is negative");
    // validate() has the same limit: a value that it refuses would make every later plan fail.
    if (std::isfinite(value) && value > kRateMax) return wrong(field, "is too large");
    return {};
}

Result<void> check_dataset(const DatasetReport& dataset, const std::string& at) {
    if (auto named = check_name(at + ".name", dataset.name); !named) return named;
    if (dataset.size_bytes == 0) return wrong(at + ".size_bytes", "must be above 0");
    for (const auto& [field, bytes] :
         {std::pair{".size_bytes", dataset.size_bytes}, std::pair{".quota_memory_bytes", dataset.quota_memory_bytes},
          std::pair{".quota_disk_bytes", dataset.quota_disk_bytes},
          std::pair{".cached_memory_bytes", dataset.cached_memory_bytes},
          std::pair{".cached_disk_bytes", dataset.cached_disk_bytes}}) {
        if (bytes >= kBytesEnd) return wrong(at + field, std::to_string(bytes) + " is too large");
    }
    return {};
}

Result<void> check_waits(const WaitsReport& waits, const std::string& at) {
    if (waits.until_us >= kMicrosecondsEnd) return wrong(at + ".until_us", "is too large");
    if (waits.since_us > waits.until_us) return wrong(at + ".since_us", "is after until_us");
    if (waits.counted_us > waits.until_us) return wrong(at + ".counted_us", "is after until_us");
    if (waits.shortest_us >= kMicrosecondsEnd) return wrong(at + ".shortest_us", "is too large");
    if (waits.lengths_us.size() > WaitsReport::kLengthsMax || waits.lengths_us.size() % 2 != 0) {
        return wrong(at + ".lengths_us",
                     "must have pairs of values, " + std::to_string(WaitsReport::kLengthsMax) + " values at most");
    }
    for (const std::uint64_t length_us : waits.lengths_us) {
        if (length_us >= kMicrosecondsEnd) return wrong(at + ".lengths_us", "has a value that is too large");
    }
    return {};
}

Result<void> check_job(const JobReport& job, const std::set<std::string_view>& datasets, const std::string& at) {
    if (auto named = check_job_name(at + ".name", job.name); !named) return named;
    if (!datasets.contains(job.dataset)) {
        return wrong(at + ".dataset", "\"" + job.dataset + "\" is not among the report's datasets");
    }
    if (auto good = check_number(at + ".busy_s", job.busy_s, false); !good) return good;
    if (auto good = check_number(at + ".demand_bytes_per_second", job.demand_bytes_per_second, false); !good)
        return good;
    if (job.unread_bytes >= kBytesEnd) return wrong(at + ".unread_bytes", "is too large");
    if (job.waits) {
        if (auto good = check_waits(*job.waits, at + ".waits"); !good) return good;
    }
    if (job.unread_cached_bytes > job.unread_bytes) {
        return wrong(at + ".unread_cached_bytes", std::to_string(job.unread_cached_bytes) + " is above unread_bytes " +
                                                      std::to_string(job.unread_bytes));
    }
    return {};
}

Result<void> check(const NodeReport& report) {
    if (auto named = check_name("node", report.node); !named) return named;
    if (report.peer_group.size() > kNameBytesMax || report.peer_endpoint.size() > kNameBytesMax) {
        return wrong("peer_endpoint",
                     "must have at most " + std::to_string(kNameBytesMax) + " bytes, and so must peer_group");
    }
    if (report.peer_group.empty() != report.peer_endpoint.empty()) {
        return wrong("peer_endpoint", "must be given if peer_group is given, and only then");
    }
    if (!report.peer_endpoint.empty() && !is_tcp_endpoint(report.peer_endpoint)) {
        return wrong("peer_endpoint", "\"" + report.peer_endpoint +
                                          "\" is not an endpoint: expected http://HOST:PORT or https://HOST:PORT");
    }
    if (report.clock_us.value_or(0) >= kMicrosecondsEnd) return wrong("clock_us", "is too large");
    if (report.memory_bytes >= kBytesEnd) return wrong("memory_bytes", "is too large");
    if (report.disk_bytes >= kBytesEnd) return wrong("disk_bytes", "is too large");
    if (auto good = check_number("disk_read_bytes_per_second", report.disk_read_bytes_per_second, true); !good)
        return good;
    if (auto good = check_number("nic_bytes_per_second", report.nic_bytes_per_second, true); !good) return good;
    std::set<std::string_view> datasets;
    for (std::size_t i = 0; i < report.datasets.size(); ++i) {
        const std::string at = "datasets[" + std::to_string(i) + "]";
        if (auto good = check_dataset(report.datasets[i], at); !good) return good;
        if (!datasets.insert(report.datasets[i].name).second) return wrong(at + ".name", "appears twice");
    }
    std::set<std::string_view> jobs;
    std::uint64_t ranks = 0;
    for (std::size_t i = 0; i < report.jobs.size(); ++i) {
        const std::string at = "jobs[" + std::to_string(i) + "]";
        if (auto good = check_job(report.jobs[i], datasets, at); !good) return good;
        if (!jobs.insert(report.jobs[i].name).second) return wrong(at + ".name", "appears twice");
        ranks += report.jobs[i].ranks;
        if (ranks > kRanksMax)
            return wrong(at + ".ranks", "the node's jobs have more than " + std::to_string(kRanksMax) + " ranks");
    }
    return {};
}

// True if the reports differ in nothing but what changes all the time while jobs read and caches fill.
bool is_same_but_counters(const NodeReport& a, const NodeReport& b) {
    const auto settings = [](const NodeReport& report) {
        return std::tie(report.node, report.instance, report.state_directory, report.rates, report.scans, report.gpus,
                        report.memory_bytes, report.disk_bytes, report.disk_read_bytes_per_second,
                        report.nic_bytes_per_second, report.peer_group, report.peer_endpoint, report.warmed);
    };
    const auto dataset = [](const DatasetReport& report) {
        return std::tie(report.name, report.size_bytes, report.quota_memory_bytes, report.quota_disk_bytes,
                        report.quota_held);
    };
    const auto job = [](const JobReport& report) {
        return std::tie(report.name, report.dataset, report.ranks, report.epoch, report.user);
    };
    return settings(a) == settings(b) && std::ranges::equal(a.datasets, b.datasets, {}, dataset, dataset) &&
           std::ranges::equal(a.jobs, b.jobs, {}, job, job);
}

// Has the processor load the first KiB of some memory into its cache, for use some hundred instructions later. The
// processor's own prefetching loads what follows.
void load_memory_ahead(const void* begin, std::size_t bytes) {
    constexpr std::size_t kLineBytes = 64;
    constexpr std::size_t kBytesMax = 1024;
    for (std::size_t at = 0; at < std::min(bytes, kBytesMax); at += kLineBytes) {
        __builtin_prefetch(static_cast<const char*>(begin) + at);
    }
}

// Rates that differ by less than this fraction count as equal.
constexpr double kSameRate = 1e-3;

bool same_quotas(const ClusterState& old_state, const Plan& old_plan, const ClusterState& state, const Plan& plan) {
    const auto same_names = [](const auto& a, const auto& b) {
        return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return x.name == y.name; });
    };
    if (!same_names(old_state.nodes, state.nodes) || !same_names(old_state.datasets, state.datasets)) return false;
    for (std::size_t i = 0; i < plan.datasets.size(); ++i) {
        if (plan.datasets[i].quotas != old_plan.datasets[i].quotas) return false;
    }
    return true;
}

// Drops quotas that hold no block. A record takes whole pages; the few bytes that other datasets leave over are less.
void drop_useless_quotas(const ClusterState& state, Plan& plan) {
    constexpr std::uint64_t kPageBytes = 4096;
    for (std::size_t i = 0; i < plan.datasets.size(); ++i) {
        DatasetPlan& dataset = plan.datasets[i];
        std::erase_if(dataset.quotas, [&](const NodeCache& quota) {
            if (quota.bytes() >= kPageBytes || state.datasets[i].is_held_on(quota.node)) return false;
            dataset.quota_bytes -= std::min(dataset.quota_bytes, quota.bytes());
            return true;
        });
    }
}

bool same_rates(const ClusterState& old_state, const Plan& old_plan, const ClusterState& state, const Plan& plan) {
    if (!std::ranges::equal(old_state.jobs, state.jobs, {}, &ClusterJob::name, &ClusterJob::name)) return false;
    for (std::size_t j = 0; j < plan.jobs.size(); ++j) {
        const double rate = plan.jobs[j].bandwidth_bytes_per_second;
        if (std::abs(rate - old_plan.jobs[j].bandwidth_bytes_per_second) > kSameRate * rate) return false;
    }
    return true;
}

}  // namespace

Cluster::Cluster(const ClusterOptions& options)
    : configured_(options),
      options_(options),
      ledger_(options.remote_bytes_per_second, options.floor_bytes_per_second, options.lease_ns),
      last_peers_etag_(options.peers_etags_above) {}

bool Cluster::is_alive(const KnownNode& node, std::int64_t now_ns) const {
    const std::int64_t excused_ns = excused_ns_ - node.excused_ns;
    return now_ns - node.heard_ns - excused_ns < options_.lease_ns;
}

// --- input

// If a new daemon uses the same state directory, its predecessor has ended, because the directory has one owner at a
// time. A daemon that still reports after its successor did has a copy of the directory, so it is no restart.
bool Cluster::is_restart(const KnownNode& node, const NodeReport& report) {
    return report.state_directory != 0 && report.state_directory == node.last.state_directory &&
           report.instance != node.previous_instance;
}

// A daemon that is cut off from the allocator reads on under its leases, beside a daemon that takes its name.
bool Cluster::is_in_use(const KnownNode& node, std::int64_t now_ns) const {
    // The daemon may have been replaced while the allocator was down.
    if (!node.is_restored && now_ns - node.heard_ns < options_.same_name_after_ns) return true;
    return std::ranges::any_of(ledger_.held(node.last.node),
                               [now_ns](const Lease& lease) { return lease.expires_ns > now_ns; });
}

bool Cluster::is_of_other_daemon(const NodeReport& report, std::int64_t now_ns) const {
    if (now_ns >= carried_.until_ns || !carried_.unheard.contains(report.node)) return false;
    const std::uint64_t known = carried_.rates.at(report.node).state_directory;
    return known != 0 && known != report.state_directory;
}

Result<void> Cluster::report(const NodeReport& as_sent, std::int64_t now_ns) {
    if (auto good = check(as_sent); !good) return good;
    NodeReport report = as_sent;
    for (JobReport& job : report.jobs) job.name = known_name(job);
    const auto found = nodes_.find(report.node);
    const bool same_instance = found != nodes_.end() && found->second.last.instance == report.instance;
    const bool is_only_daemon = found == nodes_.end() || same_instance || is_restart(found->second, report);
    if ((!is_only_daemon && is_in_use(found->second, now_ns)) || is_of_other_daemon(report, now_ns)) {
        return fail(ErrorCode::already_exists, "node \"" + report.node +
                                                   "\" reports from two daemons: give each its own name, or wait for "
                                                   "the length of a lease after a restart");
    }
    if (found == nodes_.end() && nodes_.size() >= options_.nodes_max && !forget_a_silent_node(now_ns)) {
        return fail(ErrorCode::no_space, "node \"" + report.node + "\" is refused: " +
                                             std::to_string(options_.nodes_max) + " nodes report, which is the limit");
    }
    NodeClock clock = same_instance ? found->second.clock : NodeClock();
    if (report.clock_us) clock.add(*report.clock_us, now_ns);
    std::vector<KnownJob*> jobs =
        measure(report, found == nodes_.end() ? nullptr : &found->second.last, same_instance, clock, now_ns);
    for (JobReport& job : report.jobs) job.waits.reset();  // they are counted
    report.peers_etag.reset();                             // it is for the answer
    // If the ledger's state was lost, the lease that the node has applied shows which numbers were already used.
    if (report.lease_applied <= kLeaseNumberMax) ledger_.skip_numbers_up_to(report.lease_applied);
    // A restarted daemon holds no lease, but its predecessor's requests may be in flight until it applies one.
    if (report.lease_applied != 0) ledger_.applied(report.node, report.lease_applied);
    for (const JobReport& job : report.jobs) unsaved_jobs_.insert(job.name);
    carried_.unheard.erase(report.node);
    KnownNode& node = nodes_[report.node];
    if (!same_instance || now_ns - node.noted_ns >= kNoted_ns || !is_same_but_counters(node.last, report)) {
        unsaved_nodes_.insert(report.node);
        node.noted_ns = now_ns;
    }
    // The record names the state directory.
    if (node.last.state_directory != report.state_directory) ledger_.distrust_record(report.node);
    if (!same_instance) node.previous_instance = node.last.instance;
    unindex(report.node, node);
    if (node.last.peer_group != report.peer_group) move_to_group(report.node, node, report.peer_group);
    if (node.peer_number == 0 || node.last.peer_endpoint != report.peer_endpoint)
        node.peer_number = ++last_peer_number_;
    node.last = std::move(report);
    node.jobs = std::move(jobs);
    index(node.last.node, node);
    node.heard_ns = now_ns;
    node.clock = clock;
    node.excused_ns = excused_ns_;
    node.is_restored = false;
    return {};
}

void Cluster::index(const std::string& name, KnownNode& node) {
    const NodeReport& report = node.last;
    if (report.scans > 0) scanning_.insert(name);
    node.datasets.clear();
    for (const DatasetReport& dataset : report.datasets) node.datasets.push_back(dataset_numbers_.take(dataset.name));
    node.datasets_of_jobs.clear();
    for (const JobReport& job : report.jobs) {
        const std::uint32_t number = dataset_numbers_.find(job.dataset);
        const bool is_listed = std::ranges::find(node.datasets, number) != node.datasets.end();
        node.datasets_of_jobs.push_back(is_listed ? number : NameNumbers::kNoNumber);
    }
}

void Cluster::unindex(const std::string& name, const KnownNode& node) {
    for (const std::uint32_t dataset : node.datasets) dataset_numbers_.release(dataset);
    scanning_.erase(name);
}

void Cluster::move_to_group(const std::string& name, const KnownNode& node, const std::string& to) {
    if (const auto left = groups_.find(node.last.peer_group); left != groups_.end() && node.last.peer_group != to) {
        left->second.nodes.erase(name);
        if (left->second.nodes.empty()) groups_.erase(left);
    }
    if (!to.empty()) groups_[to].nodes[name] = &node;
}

std::string Cluster::known_name(const JobReport& reported) const {
    const auto owner = user_of(reported.name);
    const bool is_owners = !reported.user || !owner || *owner == *reported.user;
    return is_owners ? reported.name : name_for_user(reported.name, *reported.user);
}

std::optional<std::uint32_t> Cluster::user_of(const std::string& job) const {
    const auto found = jobs_.find(job);
    return found == jobs_.end() ? std::nullopt : found->second.user;
}

void Cluster::rename_reported(const std::string& job) {
    for (auto& [name, node] : nodes_) {
        for (std::size_t i = 0; i < node.last.jobs.size(); ++i) {
            JobReport& reported = node.last.jobs[i];
            if (name_on_nodes(reported.name) != job) continue;
            const std::string before = std::exchange(reported.name, job);
            reported.name = known_name(reported);
            if (reported.name == before) continue;
            // The counters are compared with those of the next report, which has the new name.
            KnownJob& renamed = jobs_[reported.name];
            node.jobs[i] = &renamed;
            change_job(renamed, [&] { renamed.last_counters[name] = {.epoch = reported.epoch, .comparable = false}; });
            if (!renamed.user) renamed.user = reported.user;
            // A report on record may be damaged, and have two jobs whose names become the same.
            if (std::ranges::find(node.last.jobs, before, &JobReport::name) == node.last.jobs.end())
                job_left_node(before, name);
            unsaved_nodes_.insert(name);
        }
    }
}

// A window is shorter than the interval between a node's regular reports, so that a demand counts from the second
// regular report that has it.
void Cluster::RecentDemand::add(double bytes_per_second, std::int64_t now_ns) {
    constexpr std::int64_t kWindow_ns = 700'000'000;
    if (least == kUnlimited || now_ns - window_ns >= kWindow_ns) {
        window_ns = now_ns;
        least_before = std::exchange(least, bytes_per_second);
    } else {
        least = std::min(least, bytes_per_second);
    }
}

std::vector<Cluster::KnownJob*> Cluster::measure(const NodeReport& report, const NodeReport* last, bool same_instance,
                                                 const NodeClock& clock, std::int64_t now_ns) {
    std::set<std::string_view> jobs_in_report;
    std::vector<KnownJob*> jobs;
    jobs.reserve(report.jobs.size());
    for (const JobReport& job : report.jobs) {
        jobs_in_report.insert(job.name);
        KnownJob& known = jobs_[job.name];
        jobs.push_back(&known);
        if (!known.user) known.user = job.user;
        take_carried_ideal(job.name, known);
        Counters now{.bytes = job.bytes, .busy_s = job.busy_s, .epoch = job.epoch};
        const auto before = known.last_counters.find(report.node);
        if (same_instance && before != known.last_counters.end()) now.demand = before->second.demand;
        now.demand.add(job.demand_bytes_per_second, now_ns);
        const bool has_read = before == known.last_counters.end() || job.bytes != before->second.bytes;
        if (known.has_ended && known.to_settle.erase(report.node) == 0 && has_read) known.has_ended = false;
        const bool counters_continue = same_instance && before != known.last_counters.end() &&
                                       before->second.comparable && job.bytes >= before->second.bytes &&
                                       job.busy_s >= before->second.busy_s;
        const JobWork::Waits waits{.report = job.waits && report.clock_us ? &*job.waits : nullptr, .clock = &clock};
        if (counters_continue) {
            const IdealRate::Interval since_last{.bytes = job.bytes - before->second.bytes,
                                                 .busy_s = job.busy_s - before->second.busy_s,
                                                 .ranks = job.ranks};
            known.work.add(report.node, since_last, waits, now_ns);
            if (const auto whole = known.work.take(now_ns)) known.ideal.add(*whole);
        } else {
            known.work.begin(report.node, waits, now_ns);
        }
        if (known.ideal.bytes_per_second()) {
            known.unmeasured_since_ns.reset();
        } else if (!known.unmeasured_since_ns) {
            known.unmeasured_since_ns = now_ns;
        }
        change_job(known, [&] { known.last_counters[report.node] = now; });
        count_epochs(job.name, known);
    }
    if (last == nullptr) return jobs;
    for (const JobReport& job : last->jobs) {
        if (!jobs_in_report.contains(job.name)) job_left_node(job.name, report.node);
    }
    return jobs;
}

// Takes the newest epoch of all nodes: ranks on some nodes may be an epoch behind the others.
void Cluster::count_epochs(const std::string& name, KnownJob& job) {
    if (!job.spec) return;
    std::optional<std::uint32_t> last;
    for (const auto& [node, counters] : job.last_counters) last = std::max(last, counters.epoch);
    if (!last) return;
    const EpochsSeen seen{.first = job.epochs ? job.epochs->first : *last, .last = *last};
    if (job.epochs == seen) return;
    job.epochs = seen;
    unsaved_epochs_.insert(name);
}

void Cluster::job_left_node(const std::string& job, const std::string& node) {
    const auto found = jobs_.find(job);
    if (found == jobs_.end()) return;
    KnownJob& left = found->second;
    change_job(left, [&] { left.last_counters.erase(node); });
    left.work.leave(node);
    if (left.last_counters.empty()) left.user = left.spec ? left.spec->user : std::nullopt;
    forget_unless_needed(job);
}

void Cluster::forget_unless_needed(const std::string& job) {
    const auto found = jobs_.find(job);
    if (found == jobs_.end() || found->second.spec || !found->second.last_counters.empty() || in_turns_.contains(job))
        return;
    jobs_.erase(found);
    unsaved_jobs_.insert(job);
}

void Cluster::set_spec(KnownJob& job, std::optional<JobRegistration> spec) {
    if (job.spec) {
        --registered_count_;
        floors_bytes_per_second_ -= job.spec->bandwidth_floor_bytes_per_second;
        if (job.spec->owner) {
            const auto count = registered_by_.find(*job.spec->owner);
            if (--count->second == 0) registered_by_.erase(count);
        }
    }
    change_job(job, [&] { job.spec = std::move(spec); });
    job.has_ended = false;
    job.to_settle.clear();
    if (job.spec && job.spec->user && job.user != job.spec->user) {
        // The measurements are another user's.
        if (job.user) job.ideal.forget();
        job.user = job.spec->user;
    }
    if (job.spec) {
        ++registered_count_;
        if (job.spec->owner) ++registered_by_[*job.spec->owner];
        floors_bytes_per_second_ += job.spec->bandwidth_floor_bytes_per_second;
    }
    // Rounding errors must not outlive the last registered job.
    if (registered_count_ == 0) floors_bytes_per_second_ = 0;
}

Result<void> Cluster::check_owned(const JobRegistration& spec) const {
    const auto refuse = [&](const std::string& why) {
        return fail(ErrorCode::permission_denied, "job \"" + spec.name + "\" " + why);
    };
    if (spec.weight > 1) return refuse("cannot have a weight above 1: only operators give one");
    if (spec.bandwidth_floor_bytes_per_second > 0) {
        return refuse("cannot have a bandwidth floor: only operators give one");
    }
    const auto known = jobs_.find(spec.name);
    if (known != jobs_.end() && known->second.spec && known->second.spec->owner != spec.owner) {
        return refuse("is registered by somebody else: choose another name");
    }
    if (known != jobs_.end() && known->second.user && known->second.user != spec.user) {
        return refuse("is a job of uid " + std::to_string(*known->second.user) +
                      ": only that user and operators may register it");
    }
    const auto count = registered_by_.find(*spec.owner);
    if (count != registered_by_.end() && count->second >= options_.jobs_per_owner_max && !registered(spec.name)) {
        return fail(ErrorCode::no_space, "job \"" + spec.name + "\" is refused: you have registered " +
                                             std::to_string(count->second) +
                                             " jobs, which is the limit for one user or token; remove those that have "
                                             "ended, or ask an operator to raise limits.jobs_per_owner");
    }
    return {};
}

Result<void> Cluster::check_bandwidths(const JobRegistration& spec, double other_floors_bytes_per_second) const {
    if (auto good = check_number("bandwidth_floor_bytes_per_second", spec.bandwidth_floor_bytes_per_second, false);
        !good) {
        return good;
    }
    if (auto good = check_number("bandwidth_cap_bytes_per_second", spec.bandwidth_cap_bytes_per_second, true); !good) {
        return good;
    }
    if (spec.bandwidth_floor_bytes_per_second > spec.bandwidth_cap_bytes_per_second) {
        return wrong("bandwidth_floor_bytes_per_second", "is above bandwidth_cap_bytes_per_second");
    }
    if (other_floors_bytes_per_second + spec.bandwidth_floor_bytes_per_second > options_.remote_bytes_per_second) {
        return fail(ErrorCode::no_space,
                    "bandwidth_floor_bytes_per_second: the floors of all jobs do not fit the remote's bandwidth");
    }
    return {};
}

Result<void> Cluster::register_job(const JobRegistration& spec) {
    if (auto named = check_job_name("name", spec.name); !named) return named;
    if (auto good = check_number("weight", spec.weight, false); !good) return good;
    if (spec.weight == 0) return wrong("weight", "must be above 0");
    if (spec.weight < kWeightMin || spec.weight > kWeightMax) return wrong("weight", "is not from 1e-6 to 1e6");
    if (auto good = check_number("epochs", spec.epochs, true); !good) return good;
    if (spec.ideal_bytes_per_second) {
        if (auto good = check_number("ideal_bytes_per_second", *spec.ideal_bytes_per_second, false); !good) return good;
        if (*spec.ideal_bytes_per_second == 0) return wrong("ideal_bytes_per_second", "must be above 0");
    }
    if (spec.owner) {
        if (auto may = check_owned(spec); !may) return may;
    }
    if (auto good = check_bandwidths(spec, floors_bytes_per_second_); !good) return good;
    const auto known = jobs_.find(spec.name);
    if (known != jobs_.end() && known->second.spec) {
        return fail(ErrorCode::already_exists, "job \"" + spec.name + "\" is already registered");
    }
    if (registered_count_ >= options_.jobs_max) {
        return fail(ErrorCode::no_space, "job \"" + spec.name + "\" is refused: " + std::to_string(options_.jobs_max) +
                                             " jobs are registered, which is the limit");
    }
    if (auto saved = save({.jobs = {{spec.name, spec}}}); !saved) return saved;
    KnownJob& job = jobs_[spec.name];
    set_spec(job, spec);
    if (spec.user) rename_reported(spec.name);
    count_epochs(spec.name, jobs_[spec.name]);
    return {};
}

Result<void> Cluster::remove_job(const std::string& name) {
    const auto found = jobs_.find(name);
    if (found == jobs_.end() || !found->second.spec) {
        return fail(ErrorCode::not_found, "job \"" + name + "\" is not registered");
    }
    if (auto saved = save({.jobs = {{name, std::nullopt}}, .epochs = {{name, std::nullopt}}}); !saved) return saved;
    set_spec(found->second, std::nullopt);
    if (found->second.last_counters.empty()) found->second.user.reset();
    found->second.epochs.reset();
    unsaved_epochs_.erase(name);
    unsaved_jobs_.insert(name);
    // Measurements of a job that still runs are kept.
    forget_unless_needed(name);
    return {};
}

Result<void> Cluster::remove_ended_job(const std::string& name) {
    if (auto removed = remove_job(name); !removed) return removed;
    const auto found = jobs_.find(name);
    if (found == jobs_.end()) return {};
    found->second.has_ended = true;
    for (const auto& [node, counters] : found->second.last_counters) found->second.to_settle.insert(node);
    return {};
}

Result<void> Cluster::check_pin(const std::string& dataset, std::uint64_t bytes, std::int64_t now_ns) const {
    const ClusterState known = state(now_ns);
    const auto at = find_dataset(known, dataset);
    if (!at) return std::unexpected(at.error());
    const Room room = room_for_pin(known, known.datasets[*at]);
    if (static_cast<double>(bytes) > room.free()) {
        const auto text = [](double size) { return format_bytes(static_cast<std::uint64_t>(size)); };
        return fail(ErrorCode::no_space,
                    "dataset \"" + dataset + "\" cannot have " + text(static_cast<double>(bytes)) + ": at most " +
                        text(room.free()) + " is free, because the caches of the nodes that have it hold " +
                        text(room.capacity) + " and other datasets' quotas that are fixed or reserved have " +
                        text(room.others));
    }
    return {};
}

Result<void> Cluster::pin_quota(const std::string& dataset, std::optional<std::uint64_t> bytes, std::int64_t now_ns) {
    if (!bytes) {
        if (const auto at = find_dataset(state(now_ns), dataset); !at) return std::unexpected(at.error());
        if (auto saved = save({.pins = {{dataset, std::nullopt}}}); !saved) return saved;
        pins_.erase(dataset);
        return {};
    }
    if (auto good = check_pin(dataset, *bytes, now_ns); !good) return good;
    if (auto saved = save({.pins = {{dataset, *bytes}}}); !saved) return saved;
    pins_[dataset] = *bytes;
    return {};
}

double Cluster::Room::free() const {
    return std::max(0.0, capacity - others);
}

// A node can cache only the datasets that it has. Other pins take the cache of the nodes without `dataset` first, those
// with the fewest such nodes before the others.
Cluster::Room Cluster::room_for_pin(const ClusterState& state, const ClusterDataset& dataset) const {
    std::vector<bool> has_dataset(state.nodes.size());
    for (const NodeCache& quota : dataset.quotas) has_dataset[quota.node] = true;
    std::vector<double> unheld;
    unheld.reserve(state.nodes.size());
    for (const ClusterNode& node : state.nodes) {
        unheld.push_back(static_cast<double>(node.memory_bytes) + static_cast<double>(node.disk_bytes));
    }
    Room room;
    for (std::size_t n = 0; n < unheld.size(); ++n) room.capacity += has_dataset[n] ? unheld[n] : 0;
    struct Pinned {
        const ClusterDataset* dataset;
        double unheld_bytes;  // of the pin
        std::size_t nodes_elsewhere;
    };
    std::vector<Pinned> pinned;
    for (const ClusterDataset& other : state.datasets) {
        if (other.name == dataset.name) continue;
        double held_bytes = 0;
        for (const NodeCache& held : other.held) {
            const auto bytes = static_cast<double>(held.bytes());
            held_bytes += bytes;
            unheld[held.node] -= bytes;
            if (has_dataset[held.node]) room.others += bytes;
        }
        const auto pin = pins_.find(other.name);
        const std::uint64_t fixed_bytes = pin != pins_.end() ? pin->second : reserved_bytes(other.name);
        if (pin == pins_.end() && fixed_bytes == 0) continue;
        const auto elsewhere =
            std::ranges::count_if(other.quotas, [&](const NodeCache& quota) { return !has_dataset[quota.node]; });
        pinned.push_back({.dataset = &other,
                          .unheld_bytes = pinned_bytes(state, other, fixed_bytes) - held_bytes,
                          .nodes_elsewhere = static_cast<std::size_t>(elsewhere)});
    }
    std::ranges::stable_sort(pinned, {}, &Pinned::nodes_elsewhere);
    for (Pinned& other : pinned) {
        for (const NodeCache& quota : other.dataset->quotas) {
            if (has_dataset[quota.node]) continue;
            const double taken = std::clamp(other.unheld_bytes, 0.0, std::max(0.0, unheld[quota.node]));
            other.unheld_bytes -= taken;
            unheld[quota.node] -= taken;
        }
        room.others += std::max(0.0, other.unheld_bytes);
    }
    return room;
}

Result<void> Cluster::set_remote(double bytes_per_second) {
    if (auto good = check_number("remote_bytes_per_second", bytes_per_second, false); !good) return good;
    if (bytes_per_second == 0) return wrong("remote_bytes_per_second", "must be above 0");
    if (floors_bytes_per_second_ > bytes_per_second) {
        return wrong("remote_bytes_per_second", "is below the floors of all jobs together");
    }
    if (auto saved = save({.remote = RemoteRecord{bytes_per_second, configured_.remote_bytes_per_second}}); !saved) {
        return saved;
    }
    options_.remote_bytes_per_second = bytes_per_second;
    ledger_.set_remote(bytes_per_second);
    return {};
}

// --- plans

std::optional<double> Cluster::measured_ideal(const std::string& job) const {
    const auto found = jobs_.find(job);
    return found == jobs_.end() ? std::nullopt : found->second.ideal.bytes_per_second();
}

const JobRegistration* Cluster::registered(const std::string& job) const {
    const auto found = jobs_.find(job);
    return found == jobs_.end() || !found->second.spec ? nullptr : &*found->second.spec;
}

std::vector<std::string> Cluster::registered_jobs() const {
    std::vector<std::string> names;
    for (const auto& [name, job] : jobs_) {
        if (job.spec) names.push_back(name);
    }
    return names;
}

double Cluster::remaining_epochs(const std::string& job) const {
    const auto found = jobs_.find(job);
    return found == jobs_.end() ? kUnlimited : remaining_epochs(found->second);
}

double Cluster::remaining_epochs(const KnownJob& job) {
    if (!job.spec) return kUnlimited;
    const double declared = job.spec->epochs;
    if (!job.epochs) return declared;
    // Negative if the job was restarted from an earlier epoch.
    const double finished = static_cast<double>(job.epochs->last) - static_cast<double>(job.epochs->first);
    return std::max(std::min(declared, 1.0), declared - finished);
}

double Cluster::ideal_of(const KnownJob* job) const {
    if (job != nullptr) {
        if (const auto measured = job->ideal.bytes_per_second()) return std::min(*measured, kRateMax);
        if (job->spec && job->spec->ideal_bytes_per_second) return *job->spec->ideal_bytes_per_second;
    }
    // The job may turn out to need the whole remote.
    return std::max(1.0, options_.remote_bytes_per_second);
}

bool Cluster::ideal_is_guess(const KnownJob& job, std::int64_t now_ns) {
    // A job that waits for data for most of the time is measured in less. One that is not measured then, as its loader
    // may not tell its waits, must not go without its part of the cache for ever.
    constexpr std::int64_t kMeasuredWithin_ns = 60'000'000'000;
    if (job.ideal.bytes_per_second() || (job.spec && job.spec->ideal_bytes_per_second)) return false;
    return !job.unmeasured_since_ns || now_ns - *job.unmeasured_since_ns < kMeasuredWithin_ns;
}

Result<std::uint64_t> Cluster::replan(std::int64_t now_ns) {
    ClusterState now = state(now_ns);
    auto plan = assign(now, options_.objective);
    if (!plan) return std::unexpected(plan.error().within("the cluster as reported"));
    drop_useless_quotas(now, *plan);
    const bool quotas_hold = plan_number_ != 0 && same_quotas(planned_state_, plan_, now, *plan);
    const bool rates_hold = plan_number_ != 0 && same_rates(planned_state_, plan_, now, *plan);
    take_plan(std::move(now), std::move(*plan));
    if (quotas_hold && rates_hold && !plan_unsaved_) return plan_number_;
    if (!quotas_hold || !rates_hold) ++plan_number_;
    const bool quotas_saved = quotas_hold && !plan_unsaved_;
    plan_unsaved_ = true;
    if (auto saved = save_plan(quotas_saved); !saved) return std::unexpected(saved.error());
    plan_unsaved_ = false;
    return plan_number_;
}

void Cluster::take_plan(ClusterState state, Plan plan) {
    planned_state_ = std::move(state);
    plan_ = std::move(plan);
    planned_jobs_ = IndexLists(planned_state_.nodes.size(), [&](auto add) {
        for (std::uint32_t j = 0; j < plan_.jobs.size(); ++j) {
            for (const GpuShare& share : placement_of(planned_state_, plan_, j)) add(share.node, j);
        }
    });
    planned_datasets_ = IndexLists(planned_state_.nodes.size(), [&](auto add) {
        for (std::uint32_t i = 0; i < plan_.datasets.size(); ++i) {
            for (const NodeCache& quota : planned_state_.datasets[i].quotas) add(quota.node, i);
        }
    });
}

// Relies on state() listing nodes by name.
std::optional<std::uint32_t> Cluster::planned_index(const std::string& node) const {
    const auto& nodes = planned_state_.nodes;
    const auto found = std::ranges::lower_bound(nodes, node, {}, &ClusterNode::name);
    if (found == nodes.end() || found->name != node) return std::nullopt;
    return static_cast<std::uint32_t>(found - nodes.begin());
}

// Returns 0 for a node that was removed since the plan was made.
double Cluster::demand_of(const std::string& node, const std::string& job) const {
    const auto found = nodes_.find(node);
    if (found == nodes_.end()) return 0;
    const auto& reports = found->second.last.jobs;
    const auto reported = std::ranges::find(reports, job, &JobReport::name);
    return reported == reports.end() ? 0 : reported->demand_bytes_per_second;
}

double Cluster::lasting_demand_of(const std::string& node, const std::string& job) const {
    const auto known = jobs_.find(job);
    if (known == jobs_.end()) return 0;
    const auto counters = known->second.last_counters.find(node);
    if (counters == known->second.last_counters.end()) return 0;
    const RecentDemand& demand = counters->second.demand;
    return demand.least == kUnlimited ? 0 : std::min(demand.least, demand.least_before);
}

std::size_t Cluster::scanning_nodes(std::int64_t now_ns) const {
    return static_cast<std::size_t>(std::ranges::count_if(scanning_, [&](const std::string& name) {
        const KnownNode& node = nodes_.at(name);
        return node.last.rates && is_alive(node, now_ns);
    }));
}

// A job's grant is the most it may take. While nodes scan, the job leaves them the bandwidth it neither needs nor has
// lately asked for. A demand that only one report has is a burst of prefetching, which the job's loaders have buffers
// for.
double Cluster::grant_beside_scans(std::uint32_t job) const {
    const JobPlan& plan = plan_.jobs[job];
    double demand = 0;
    for (const GpuShare& share : placement_of(planned_state_, plan_, job)) {
        demand += lasting_demand_of(planned_state_.nodes[share.node].name, planned_state_.jobs[job].name);
    }
    constexpr double kRoomToGrow = 1.1;
    const double need = plan.predicted_bytes_per_second * (1 - plan.hit_ratio);
    return std::min(plan.bandwidth_bytes_per_second, kRoomToGrow * std::max(need, demand));
}

// Each scanning node gets an equal part of the bandwidth that jobs leave.
double Cluster::rate_for_scans(std::size_t scanning) const {
    double left = options_.remote_bytes_per_second;
    for (std::uint32_t j = 0; j < plan_.jobs.size(); ++j) left -= grant_beside_scans(j);
    return std::max(0.0, left) / static_cast<double>(std::max<std::size_t>(1, scanning));
}

std::vector<double> split_grant(double grant, std::span<const double> demands, double floor) {
    if (demands.empty()) return {};
    const auto count = static_cast<double>(demands.size());
    const double least = std::min(floor, grant / count);
    std::vector<UserClaim> claims;
    claims.reserve(demands.size());
    for (const double demand : demands) claims.push_back({.need = std::max(0.0, demand - least)});
    std::vector<double> parts = fair_shares(grant - least * count, claims);
    for (double& part : parts) part += least;
    const double left = grant - std::accumulate(parts.begin(), parts.end(), 0.0);
    for (double& part : parts) part += left / count;
    return parts;
}

const std::vector<LeasedRate>* Cluster::carried_rates(const std::string& node, std::int64_t now_ns) const {
    if (carried_.unheard.empty() || now_ns >= carried_.until_ns) return nullptr;
    const auto found = carried_.rates.find(node);
    return found == carried_.rates.end() ? nullptr : &found->second.rates;
}

// If users have jobs of the same name, another one may have been the first to report to this allocator than to the one
// before. So the job may have had another name there.
void Cluster::take_carried_ideal(const std::string& name, KnownJob& job) {
    if (carried_.ideals.empty()) return;
    const std::string on_nodes = name_on_nodes(name);
    const std::string of_user = job.user ? name_for_user(on_nodes, *job.user) : name;
    for (const std::string& before : {of_user, name, on_nodes}) {
        const auto found = carried_.ideals.find(before);
        if (found == carried_.ideals.end() || !may_be_same(found->second.user, job.user)) continue;
        job.ideal.resume(found->second.bytes_per_second);
        carried_.ideals.erase(found);
        unsaved_jobs_.insert(before);
        return;
    }
}

void Cluster::end_carry_over(std::int64_t now_ns) {
    if (now_ns < carried_.until_ns) return;
    if (carried_.until_ns == CarriedOver().until_ns) return;
    for (const auto& [job, ideal] : carried_.ideals) unsaved_jobs_.insert(job);
    carried_ = {};
    // Nodes that are gone for good leave records behind.
    stale_records_ = ledger_.records_without_lease(now_ns);
}

// Numbers rather than hashes: no node can choose a name or an endpoint that makes two lists look the same.
std::uint64_t Cluster::peers_etag(PeerGroup& group, std::int64_t now_ns) {
    const auto is_listed = [&](const auto& entry) { return is_alive(*entry.second, now_ns); };
    const auto number = [](const auto& entry) { return entry.second->peer_number; };
    auto alive = group.nodes | std::views::filter(is_listed) | std::views::transform(number);
    if (!std::ranges::equal(alive, group.listed)) {
        group.listed.assign(alive.begin(), alive.end());
        group.etag = ++last_peers_etag_;
    }
    return group.etag;
}

void Cluster::put_peers(NodePlan& part, const KnownNode& node, std::optional<std::uint64_t> known_etag,
                        std::int64_t now_ns) {
    const auto group = groups_.find(node.last.peer_group);
    if (group != groups_.end()) part.peers_etag = peers_etag(group->second, now_ns);
    if (part.peers_etag == known_etag) return;
    part.peers.emplace();
    if (group == groups_.end()) return;
    for (const auto& [name, peer] : group->second.nodes) {
        if (peer == &node || !is_alive(*peer, now_ns)) continue;
        part.peers->push_back({.node = name, .endpoint = peer->last.peer_endpoint});
    }
}

Result<NodePlan> Cluster::plan_for(const std::string& node, std::int64_t now_ns,
                                   std::optional<std::uint64_t> known_peers_etag) {
    const auto index = planned_index(node);
    if (!index || !nodes_.contains(node)) {
        return fail(ErrorCode::not_found, "node \"" + node + "\" is not in the plan: it has to report first");
    }
    const std::uint32_t planned_node = *index;
    const bool rates = nodes_.at(node).last.rates;
    if (rates && ledger_.wait_ns(now_ns) > 0) {
        return fail(ErrorCode::unavailable,
                    "rates leased before the allocator's start may still be in force: no lease is granted "
                    "until they have expired");
    }
    NodePlan part{.plan = plan_number_, .quotas = {}, .peers = {}, .peers_etag = 0, .lease = {}, .warm = {}};
    put_peers(part, nodes_.at(node), known_peers_etag, now_ns);
    // A node that has the dataset must be told of a quota of 0.
    for (const std::uint32_t i : planned_datasets_.of(planned_node)) {
        const auto quota = std::ranges::lower_bound(plan_.datasets[i].quotas, planned_node, {}, &NodeCache::node);
        const bool given = quota != plan_.datasets[i].quotas.end() && quota->node == planned_node;
        part.quotas.push_back({.name = planned_state_.datasets[i].name,
                               .memory_bytes = given ? quota->memory_bytes : 0,
                               .disk_bytes = given ? quota->disk_bytes : 0});
        const bool has_room = given && quota->bytes() > 0;
        if (has_room && is_to_be_warmed_on(i, planned_node)) part.warm.push_back(planned_state_.datasets[i].name);
    }
    if (!rates) return part;
    end_carry_over(now_ns);
    const std::vector<LeasedRate>* const carried = carried_rates(node, now_ns);
    const std::size_t scanning = scanning_nodes(now_ns);
    std::vector<LeasedRate> wanted;
    for (const std::uint32_t j : planned_jobs_.of(planned_node)) {
        const JobPlan& job = plan_.jobs[j];
        const std::string& name = planned_state_.jobs[j].name;
        std::vector<double> demands;
        std::size_t own_index = 0;
        for (const GpuShare& share : placement_of(planned_state_, plan_, j)) {
            const std::string& share_node = planned_state_.nodes[share.node].name;
            if (share_node == node) own_index = demands.size();
            demands.push_back(demand_of(share_node, name));
        }
        const double grant = scanning > 0 ? grant_beside_scans(j) : job.bandwidth_bytes_per_second;
        const auto parts = split_grant(grant, demands, planned_state_.lease_floor_bytes_per_second);
        LeasedRate rate{.job = name_on_nodes(name), .bytes_per_second = parts[own_index]};
        if (carried != nullptr) {
            const auto before = std::ranges::find(*carried, rate.job, &LeasedRate::job);
            const double cap = planned_state_.jobs[j].bandwidth_cap_bytes_per_second;
            if (before != carried->end()) rate.bytes_per_second = std::min(before->bytes_per_second, cap);
        }
        wanted.push_back(std::move(rate));
    }
    if (nodes_.at(node).last.scans > 0) {
        LeasedRate rate{.job = kScansJob, .bytes_per_second = rate_for_scans(scanning)};
        if (carried != nullptr) {
            const auto before = std::ranges::find(*carried, rate.job, &LeasedRate::job);
            rate.bytes_per_second = before != carried->end() ? before->bytes_per_second : 0;
        }
        wanted.push_back(std::move(rate));
    }
    const auto recorded_floor = recorded_floors_.find(node);
    const bool is_new = recorded_floor == recorded_floors_.end();
    const bool cannot_rise = !is_new && now_ns < recorded_floor->second.no_rise_until_ns;
    part.lease = ledger_.lease(node, std::move(wanted), now_ns, planned_state_.lease_floor_bytes_per_second,
                               cannot_rise ? recorded_floor->second.confirmed : kUnlimited);
    // Saved before the lease can be used, so that the lease counts after a restart.
    ClusterRecord change{.leases = {{node, ledger_.held(node)}}};
    const double floor = ledger_.expired(node);
    const bool floor_rises = is_new || floor > recorded_floor->second.noted * (1 + kSameFloor);
    // A floor that is on record may be too high, so it is seldom lowered.
    const bool floor_falls = !is_new && floor < recorded_floor->second.noted / 2;
    if (floor_rises || floor_falls) change.floors[node] = floor;
    if (saves_rates_) change.rates = ledger_.to_record(node, now_ns);
    for (auto& [of, recorded] : change.rates) {
        const auto known = nodes_.find(of);
        if (recorded && known != nodes_.end()) recorded->state_directory = known->second.last.state_directory;
    }
    const auto own = change.rates.find(node);
    const bool rises =
        own != change.rates.end() && own->second && own->second->bytes_per_second > ledger_.on_record(node);
    if (rises || floor_rises) change.promised_to = node;
    for (; !stale_records_.empty() && change.rates.size() < kRatesAtOnceMax; stale_records_.pop_back()) {
        const std::string& stale = stale_records_.back();
        if (ledger_.has_record_without_lease(stale, now_ns)) change.rates[stale] = std::nullopt;
    }
    const LeaseLedger::Records records = change.rates;
    if (auto saved = save(std::move(change)); !saved) {
        ledger_.take_back(node, part.lease.number);
        return std::unexpected(saved.error());
    }
    if (floor_rises || floor_falls) {
        RecordedFloor& recorded = recorded_floors_[node];
        recorded.noted = floor;
        recorded.confirmed = std::min(recorded.confirmed, floor);
    }
    ledger_.recorded(records, now_ns);
    for (const auto& [other, record] : records) {
        if (other != node) lowered_with_[node].push_back(other);
    }
    return part;
}

void Cluster::withdraw_lease(const std::string& node, std::uint64_t number, std::int64_t now_ns) {
    ledger_.take_back(node, number);
    const auto floor = recorded_floors_.find(node);
    if (floor != recorded_floors_.end() && floor->second.noted > floor->second.confirmed) {
        floor->second.noted = floor->second.confirmed;
        floor->second.no_rise_until_ns = now_ns + options_.lease_ns;
        if (floor->second.confirmed <= 0) recorded_floors_.erase(floor);
    }
    ledger_.not_recorded(node, now_ns);
    const auto lowered = lowered_with_.find(node);
    if (lowered == lowered_with_.end()) return;
    for (const std::string& other : lowered->second) ledger_.distrust_record(other);
    lowered_with_.erase(lowered);
}

void Cluster::confirm_promises(const std::string& node) {
    ledger_.confirm(node);
    const auto floor = recorded_floors_.find(node);
    if (floor != recorded_floors_.end()) floor->second.confirmed = floor->second.noted;
    lowered_with_.erase(node);
}

void Cluster::set_turns(std::vector<Turn> turns) {
    const auto before = std::exchange(in_turns_, {});
    turns_ = std::move(turns);
    in_turns_.reserve(turns_.size());
    for (const Turn& turn : turns_) in_turns_.insert(turn.job);
    for (const std::string& job : before) {
        if (!in_turns_.contains(job)) forget_unless_needed(job);
    }
}

void Cluster::add_turns(ClusterState& state) const {
    boost::unordered_flat_map<std::string_view, std::uint32_t> node_at, dataset_at, job_at;
    if (turns_.empty()) return;
    const auto index_names = [](const auto& things, auto& indices) {
        for (std::uint32_t i = 0; i < things.size(); ++i) indices.emplace(things[i].name, i);
    };
    index_names(state.nodes, node_at);
    index_names(state.datasets, dataset_at);
    index_names(state.jobs, job_at);
    std::vector<ClusterJob> waiting;  // kept apart, because the keys of job_at point into state.jobs
    for (const Turn& turn : turns_) {
        const auto running = job_at.find(turn.job);
        if (running != job_at.end()) {
            state.jobs[running->second].time_share = turn.time_share;
            continue;
        }
        const auto dataset = dataset_at.find(turn.dataset);
        if (dataset == dataset_at.end()) continue;
        const auto known = jobs_.find(turn.job);
        ClusterJob job{.name = turn.job,
                       .dataset = dataset->second,
                       .ideal_bytes_per_second = turn.ideal_bytes_per_second > 0
                                                     ? turn.ideal_bytes_per_second
                                                     : ideal_of(known == jobs_.end() ? nullptr : &known->second),
                       .weight = turn.weight,
                       .remaining_epochs = turn.epochs,
                       .time_share = turn.time_share};
        for (const auto& [name, gpus] : turn.ran_on) {
            const auto node = node_at.find(name);
            if (node == node_at.end()) continue;
            job.last_placement.push_back({node->second, gpus});
            job.gpus += gpus;
        }
        if (!job.last_placement.empty()) waiting.push_back(std::move(job));
    }
    std::ranges::move(waiting, std::back_inserter(state.jobs));
}

double Cluster::pinned_bytes(const ClusterState& state, const ClusterDataset& dataset, std::uint64_t pin) {
    std::set<std::uint32_t> groups;
    for (const NodeCache& quota : dataset.quotas) groups.insert(state.nodes[quota.node].peer_group);
    return std::min(static_cast<double>(pin),
                    static_cast<double>(dataset.size_bytes) * static_cast<double>(groups.size()));
}

// A lease gives each job at least its floor on each of its nodes, whatever the plan says. So the plan must not give
// that bandwidth to other jobs. If the remote is too slow for all floors, leases shrink the floors in the same way. The
// floors of one user's jobs take an equal part of the bandwidth at most, so that a user with many jobs cannot take it
// all.
void Cluster::count_lease_floors(ClusterState& state, const std::vector<bool>& takes_leases) const {
    const auto leased_nodes = [&](const ClusterJob& job) {
        return std::ranges::count_if(job.placement, [&](const GpuShare& share) { return takes_leases[share.node]; });
    };
    constexpr double kAllButRounding = 1 - 1e-9;  // the floors' sum must not exceed the remote
    double left = kAllButRounding * options_.remote_bytes_per_second;
    std::map<std::optional<std::uint32_t>, double> floors_by_user;
    for (const ClusterJob& job : state.jobs) {
        left -= job.bandwidth_floor_bytes_per_second;
        if (const auto floors = leased_nodes(job); floors > 0) floors_by_user[job.user] += static_cast<double>(floors);
    }
    state.lease_floor_bytes_per_second = options_.floor_bytes_per_second;
    if (floors_by_user.empty()) return;
    const double most_floors = std::ranges::max(floors_by_user | std::views::values);
    const double users = static_cast<double>(floors_by_user.size());
    const double floor = std::min(options_.floor_bytes_per_second, std::max(0.0, left) / users / most_floors);
    state.lease_floor_bytes_per_second = floor;
    for (ClusterJob& job : state.jobs) {
        const double leased =
            std::min(floor * static_cast<double>(leased_nodes(job)), job.bandwidth_cap_bytes_per_second);
        job.bandwidth_floor_bytes_per_second = std::max(job.bandwidth_floor_bytes_per_second, leased);
    }
}

void Cluster::KnownNode::load_ahead() const {
    const auto load = [](const auto& things) {
        const auto bytes = std::as_bytes(std::span(things));
        load_memory_ahead(bytes.data(), bytes.size());
    };
    load(last.datasets);
    load(last.jobs);
    load(jobs);
    load(datasets);
    load(datasets_of_jobs);
}

void Cluster::KnownJob::load_ahead() const {
    const auto* const end = reinterpret_cast<const char*>(&spec + 1);
    load_memory_ahead(this, static_cast<std::size_t>(end - reinterpret_cast<const char*>(this)));
}

ClusterState Cluster::state(std::int64_t now_ns) const {
    ClusterState state{.remote_bytes_per_second = options_.remote_bytes_per_second,
                       .horizon_s = static_cast<double>(options_.lease_ns) * 1e-9};
    constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
    std::vector<std::uint32_t> dataset_at(dataset_numbers_.end(), kNone);  // index in the state, by number
    boost::unordered_flat_map<const KnownJob*, std::uint32_t> job_at;
    boost::unordered_flat_map<std::string_view, std::uint32_t> group_at;  // number of the group's first node
    std::vector<bool> takes_leases;
    double capacity = 0;
    state.nodes.reserve(nodes_.size());
    state.datasets.reserve(planned_state_.datasets.size());
    state.jobs.reserve(planned_state_.jobs.size());
    job_at.reserve(planned_state_.jobs.size());
    takes_leases.reserve(nodes_.size());
    // Most datasets are on as many nodes as in the last plan.
    const auto add_dataset = [&](const std::string& name) {
        const std::size_t index = state.datasets.size();
        ClusterDataset& dataset = state.datasets.emplace_back();
        dataset.name = name;
        if (index >= planned_state_.datasets.size() || planned_state_.datasets[index].name != name) return;
        dataset.quotas.reserve(planned_state_.datasets[index].quotas.size());
        dataset.cached.reserve(planned_state_.datasets[index].cached.size());
    };
    std::vector<const std::pair<const std::string, KnownNode>*> alive;
    alive.reserve(nodes_.size());
    for (const auto& entry : nodes_) {
        if (is_alive(entry.second, now_ns)) alive.push_back(&entry);
    }
    for (std::size_t n = 0; n < alive.size(); ++n) {
        if (n + 2 < alive.size()) alive[n + 2]->second.load_ahead();
        if (n + 1 < alive.size()) std::ranges::for_each(alive[n + 1]->second.jobs, &KnownJob::load_ahead);
        const auto& [name, known] = *alive[n];
        const NodeReport& report = known.last;
        const auto node = static_cast<std::uint32_t>(state.nodes.size());
        takes_leases.push_back(report.rates);
        std::uint64_t gpus = 0;  // a saved report may predate the limit on ranks
        for (const JobReport& job : report.jobs) gpus += job.ranks;
        gpus = std::clamp<std::uint64_t>(gpus, report.gpus, std::numeric_limits<std::uint32_t>::max());
        state.nodes.push_back(
            {.name = name,
             .gpus = static_cast<std::uint32_t>(gpus),
             .memory_bytes = report.memory_bytes,
             .disk_bytes = report.disk_bytes,
             .disk_read_bytes_per_second = report.disk_read_bytes_per_second,
             .nic_bytes_per_second = report.nic_bytes_per_second,
             .peer_group = report.peer_group.empty() ? node : group_at.emplace(report.peer_group, node).first->second});
        capacity += static_cast<double>(report.memory_bytes) + static_cast<double>(report.disk_bytes);
        NodeCache unheld{.node = node, .memory_bytes = report.memory_bytes, .disk_bytes = report.disk_bytes};
        for (std::size_t i = 0; i < report.datasets.size(); ++i) {
            const DatasetReport& reported = report.datasets[i];
            std::uint32_t& index = dataset_at[known.datasets[i]];
            if (index == kNone) {
                index = static_cast<std::uint32_t>(state.datasets.size());
                add_dataset(reported.name);
            }
            ClusterDataset& dataset = state.datasets[index];
            // Nodes may have different versions for a while; the largest one must fit.
            dataset.size_bytes = std::max(dataset.size_bytes, reported.size_bytes);
            dataset.quotas.push_back({node, reported.quota_memory_bytes, reported.quota_disk_bytes});
            dataset.cached.push_back({node, reported.cached_memory_bytes, reported.cached_disk_bytes});
            if (!reported.quota_held) continue;
            // A node may briefly report more than it has.
            const NodeCache held{node, std::min(reported.quota_memory_bytes, unheld.memory_bytes),
                                 std::min(reported.quota_disk_bytes, unheld.disk_bytes)};
            dataset.held.push_back(held);
            unheld.memory_bytes -= held.memory_bytes;
            unheld.disk_bytes -= held.disk_bytes;
            capacity -= static_cast<double>(held.bytes());
        }
        for (std::size_t i = 0; i < report.jobs.size(); ++i) {
            const JobReport& reported = report.jobs[i];
            const KnownJob& known_job = *known.jobs[i];
            const std::uint32_t dataset = known.datasets_of_jobs[i];
            if (known_job.has_ended || dataset == NameNumbers::kNoNumber) continue;
            const auto [found, added] = job_at.emplace(&known_job, static_cast<std::uint32_t>(state.jobs.size()));
            if (added) {
                ClusterJob& job = state.jobs.emplace_back(
                    ClusterJob{.name = reported.name,
                               .dataset = dataset_at[dataset],
                               .ideal_bytes_per_second = ideal_of(&known_job),
                               .ideal_is_measured = known_job.ideal.bytes_per_second().has_value(),
                               .ideal_is_guess = ideal_is_guess(known_job, now_ns)});
                declare(job, known_job);
            }
            ClusterJob& job = state.jobs[found->second];
            job.gpus += reported.ranks;
            job.placement.push_back({node, reported.ranks});
            job.unread_bytes += reported.unread_bytes;
            job.unread_cached_bytes += reported.unread_cached_bytes;
        }
    }
    add_placed_jobs(state, now_ns);
    count_lease_floors(state, takes_leases);
    add_turns(state);
    for (ClusterDataset& dataset : state.datasets) {
        const auto pin = pins_.find(dataset.name);
        if (const std::uint64_t least = reserved_bytes(dataset.name); least > 0 && pin == pins_.end()) {
            const double bytes = std::min(pinned_bytes(state, dataset, least), std::max(0.0, capacity));
            dataset.quota_floor_bytes = static_cast<std::uint64_t>(bytes);
            dataset.expected_on = expected_nodes(state, dataset);
            capacity -= bytes;
        }
        if (pin == pins_.end()) continue;
        dataset.quota_cap_bytes = pin->second;
        // After nodes have gone, the pins may no longer fit. A pin that does not fit is a target (a cap), not a floor.
        const double bytes = pinned_bytes(state, dataset, pin->second);
        dataset.quota_floor_bytes = bytes <= capacity ? pin->second : 0;
        capacity -= bytes <= capacity ? bytes : 0;
    }
    return state;
}

// Returns the quotas that each node of the plan is told, 0 included.
Cluster::Quotas Cluster::quotas() const {
    std::vector<std::vector<DatasetQuota>> by_node(planned_state_.nodes.size());
    for (std::size_t i = 0; i < plan_.datasets.size(); ++i) {
        const std::string& name = planned_state_.datasets[i].name;
        for (const NodeCache& quota : planned_state_.datasets[i].quotas) by_node[quota.node].push_back({.name = name});
        for (const NodeCache& given : plan_.datasets[i].quotas) {
            auto& node_quotas = by_node[given.node];
            if (node_quotas.empty() || node_quotas.back().name != name) node_quotas.push_back({.name = name});
            node_quotas.back().memory_bytes = given.memory_bytes;
            node_quotas.back().disk_bytes = given.disk_bytes;
        }
    }
    Quotas quotas;
    for (std::size_t n = 0; n < by_node.size(); ++n) quotas[planned_state_.nodes[n].name] = std::move(by_node[n]);
    return quotas;
}

Result<void> Cluster::save_plan(bool same_quotas) {
    if (!save_) return {};
    ClusterRecord change{.plan_number = plan_number_};
    if (same_quotas) return save(std::move(change));
    Quotas now = quotas();
    for (const auto& [node, node_quotas] : now) {
        const auto saved = saved_quotas_.find(node);
        if (saved == saved_quotas_.end() || saved->second != node_quotas) change.quotas[node] = node_quotas;
    }
    for (const auto& [node, node_quotas] : saved_quotas_) {
        if (!now.contains(node)) change.quotas[node] = std::nullopt;
    }
    if (auto saved = save(std::move(change)); !saved) return saved;
    saved_quotas_ = std::move(now);
    return {};
}

Result<void> Cluster::save(ClusterRecord change) {
    if (!save_) return {};
    for (const std::string& node : unsaved_nodes_) {
        const auto found = nodes_.find(node);
        change.nodes[node] = found == nodes_.end() ? std::nullopt : std::optional(found->second.last);
    }
    for (const std::string& job : unsaved_jobs_) {
        const auto measured = measured_ideal(job);
        if (measured) {
            change.ideals[job] = MeasuredIdeal{.bytes_per_second = *measured, .user = user_of(job)};
        } else if (!jobs_.contains(job)) {
            change.ideals[job] = std::nullopt;
        }
    }
    for (const std::string& job : unsaved_epochs_) change.epochs[job] = jobs_.at(job).epochs;
    if (auto saved = save_(change); !saved) return saved;
    unsaved_epochs_.clear();
    unsaved_nodes_.clear();
    unsaved_jobs_.clear();
    return {};
}

Result<void> Cluster::remove_node(const std::string& node, std::int64_t now_ns) {
    const auto found = nodes_.find(node);
    const std::vector<Lease> held = ledger_.held(node);
    if (found == nodes_.end() && held.empty()) {
        return fail(ErrorCode::not_found, "node \"" + node + "\" is unknown: `larder node ls` lists the nodes");
    }
    const auto runs = [now_ns](const Lease& lease) { return lease.expires_ns > now_ns; };
    if ((found != nodes_.end() && is_alive(found->second, now_ns)) || std::ranges::any_of(held, runs)) {
        return fail(
            ErrorCode::changed,
            "node \"" + node + "\" reports, or has a lease: stop its daemon and wait until its lease has expired");
    }
    ClusterRecord change{
        .nodes = {{node, std::nullopt}}, .leases = {{node, std::nullopt}}, .floors = {{node, std::nullopt}}};
    if (saves_rates_) change.rates[node] = std::nullopt;
    if (auto saved = save(change); !saved) return saved;
    if (found != nodes_.end()) forget_node(found);
    ledger_.remove(node);
    recorded_floors_.erase(node);
    lowered_with_.erase(node);
    return {};
}

// Forgets the node; its leases stay in the ledger.
void Cluster::forget_node(std::map<std::string, KnownNode>::const_iterator node) {
    unsaved_nodes_.insert(node->first);
    for (const JobReport& job : node->second.last.jobs) job_left_node(job.name, node->first);
    unindex(node->first, node->second);
    move_to_group(node->first, node->second, "");
    nodes_.erase(node);
}

bool Cluster::forget_a_silent_node(std::int64_t now_ns) {
    const auto heard = [](const auto& entry) { return entry.second.heard_ns; };
    const auto longest = std::ranges::min_element(nodes_, {}, heard);
    if (longest == nodes_.end() || is_alive(longest->second, now_ns)) return false;
    forget_node(longest);
    return true;
}

Result<void> Cluster::restore(const ClusterRecord& record, std::int64_t now_ns) {
    for (const auto& [name, spec] : record.jobs) {
        if (spec) set_spec(jobs_[name], spec);
    }
    for (const auto& [name, report] : record.nodes) {
        if (!report) continue;
        for (const JobReport& job : report->jobs) {
            KnownJob& known = jobs_[job.name];
            change_job(known, [&] { known.last_counters[name] = {.epoch = job.epoch, .comparable = false}; });
            if (!known.user) known.user = job.user;
        }
    }
    for (const auto& [name, seen] : record.epochs) {
        const auto found = jobs_.find(name);
        if (found != jobs_.end() && found->second.spec) found->second.epochs = seen;
    }
    for (const auto& [name, ideal] : record.ideals) {
        const auto job = jobs_.find(name);
        // A measured rate is dropped if its job is neither registered nor running.
        if (ideal && job != jobs_.end() && may_be_same(ideal->user, job->second.user)) {
            job->second.ideal.resume(ideal->bytes_per_second);
        } else if (ideal && record.rates_until_ns) {
            carried_.ideals[name] = *ideal;
        } else {
            unsaved_jobs_.insert(name);
        }
    }
    for (const auto& [dataset, bytes] : record.pins) {
        if (bytes) pins_[dataset] = *bytes;
    }
    if (record.remote && record.remote->configured_bytes_per_second == configured_.remote_bytes_per_second) {
        options_.remote_bytes_per_second = record.remote->bytes_per_second;
        ledger_.set_remote(options_.remote_bytes_per_second);
    }
    for (const auto& [node, leases] : record.leases) {
        if (leases) ledger_.restore(node, *leases);
    }
    for (const auto& [node, floor] : record.floors) {
        if (floor) recorded_floors_[node] = {.noted = *floor, .confirmed = *floor};
    }
    ledger_.recorded(record.rates, now_ns);
    for (const auto& [node, rates] : record.rates) ledger_.confirm(node);
    if (record.lease_numbers_above) ledger_.skip_numbers_up_to(*record.lease_numbers_above);
    carried_.until_ns = record.rates_until_ns.value_or(carried_.until_ns);
    for (const auto& [node, rates] : record.rates) {
        if (!rates || !record.rates_until_ns) continue;
        carried_.rates[node] = *rates;
        carried_.unheard.insert(node);
    }
    if (record.no_lease_before_ns) ledger_.wait_until(*record.no_lease_before_ns);
    // The allocator was unreachable, not the nodes. So nodes of the plan get a whole lease to report.
    for (const auto& [name, report] : record.nodes) {
        if (!report) continue;
        const bool planned = record.quotas.contains(name);
        KnownNode& node = nodes_[name];
        node = {.last = *report,
                .heard_ns = planned ? now_ns : now_ns - options_.lease_ns,
                .excused_ns = excused_ns_,
                .is_restored = true};
        node.peer_number = ++last_peer_number_;
        for (const JobReport& job : report->jobs) node.jobs.push_back(&jobs_[job.name]);
        index(name, node);
        move_to_group(name, node, report->peer_group);
    }
    if (!record.plan_number) return {};
    plan_number_ = *record.plan_number;
    ClusterState restored = state(now_ns);
    auto plan = assign(restored, options_.objective);
    if (plan) take_plan(std::move(restored), std::move(*plan));
    // If the saved quotas no longer fit the known nodes and datasets, this is a new plan. Its number must be saved, so
    // that no other plan ever gets the same number.
    if (!plan || !take_quotas(record)) {
        ++plan_number_;
        plan_unsaved_ = true;
    }
    if (!plan) return std::unexpected(plan.error().within("the stored cluster"));
    return {};
}

// Puts the saved quotas into the plan. Returns false if they are for other nodes or datasets.
bool Cluster::take_quotas(const ClusterRecord& record) {
    for (const auto& [node, node_quotas] : record.quotas) {
        if (node_quotas) saved_quotas_[node] = *node_quotas;
    }
    const Quotas planned = quotas();
    const auto same_names = [](const auto& a, const auto& b) {
        return a.first == b.first &&
               std::ranges::equal(a.second, b.second, {}, &DatasetQuota::name, &DatasetQuota::name);
    };
    if (!std::ranges::equal(planned, saved_quotas_, same_names)) return false;
    std::map<std::string_view, std::size_t> dataset_at;
    for (std::size_t i = 0; i < plan_.datasets.size(); ++i) {
        dataset_at[planned_state_.datasets[i].name] = i;
        plan_.datasets[i] = {};
    }
    for (std::uint32_t node = 0; node < planned_state_.nodes.size(); ++node) {
        for (const DatasetQuota& quota : saved_quotas_.at(planned_state_.nodes[node].name)) {
            const NodeCache cache{node, quota.memory_bytes, quota.disk_bytes};
            if (cache.bytes() == 0) continue;
            DatasetPlan& dataset = plan_.datasets[dataset_at.at(quota.name)];
            dataset.quotas.push_back(cache);
            dataset.quota_bytes += cache.bytes();
        }
    }
    return true;
}

}  // namespace larder::allocator
