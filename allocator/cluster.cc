#include "allocator/cluster.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "base/units.h"

namespace larder::allocator {
namespace {

constexpr std::size_t kNameBytesMax = 255;
constexpr std::uint64_t kLeaseNumberMax = std::uint64_t{1} << 62;  // far above any number a ledger reaches
constexpr std::uint64_t kRanksMax = 1 << 16;                       // per node: sums over all nodes stay exact

Result<void> wrong(const std::string& field, const std::string& why) {
    return fail(ErrorCode::invalid_argument, field + ": " + why);
}

Result<void> check_name(const std::string& field, std::string_view name) {
    if (name.empty() || name.size() > kNameBytesMax) {
        return wrong(field, "must have 1 to " + std::to_string(kNameBytesMax) + " bytes");
    }
    return {};
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

Result<void> check_job(const JobReport& job, const std::set<std::string_view>& datasets, const std::string& at) {
    if (auto named = check_name(at + ".name", job.name); !named) return named;
    if (!datasets.contains(job.dataset)) {
        return wrong(at + ".dataset", "\"" + job.dataset + "\" is not among the report's datasets");
    }
    if (auto good = check_number(at + ".busy_s", job.busy_s, false); !good) return good;
    if (auto good = check_number(at + ".demand_bytes_per_second", job.demand_bytes_per_second, false); !good)
        return good;
    if (job.unread_bytes >= kBytesEnd) return wrong(at + ".unread_bytes", "is too large");
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
      ledger_(options.remote_bytes_per_second, options.floor_bytes_per_second, options.lease_ns) {}

bool Cluster::is_alive(const KnownNode& node, std::int64_t now_ns) const {
    return now_ns - node.heard_ns < options_.lease_ns;
}

// --- input

// If a new daemon uses the same state directory, its predecessor has ended, because the directory has one owner at a
// time. A daemon that still reports after its successor did has a copy of the directory, so it is no restart.
bool Cluster::is_restart(const KnownNode& node, const NodeReport& report) {
    return report.state_directory != 0 && report.state_directory == node.last.state_directory &&
           report.instance != node.previous_instance;
}

Result<void> Cluster::report(const NodeReport& report, std::int64_t now_ns) {
    if (auto good = check(report); !good) return good;
    const auto found = nodes_.find(report.node);
    const bool same_instance = found != nodes_.end() && found->second.last.instance == report.instance;
    const bool is_only_daemon = found == nodes_.end() || same_instance || is_restart(found->second, report);
    if (!is_only_daemon && now_ns - found->second.heard_ns < options_.same_name_after_ns) {
        return fail(ErrorCode::already_exists, "node \"" + report.node +
                                                   "\" reports from two daemons: give each its own name, or wait a "
                                                   "few seconds after a restart");
    }
    if (found == nodes_.end() && nodes_.size() >= options_.nodes_max && !forget_a_silent_node(now_ns)) {
        return fail(ErrorCode::no_space, "node \"" + report.node + "\" is refused: " +
                                             std::to_string(options_.nodes_max) + " nodes report, which is the limit");
    }
    measure(report, found == nodes_.end() ? nullptr : &found->second.last, same_instance);
    // If the ledger's state was lost, the lease that the node has applied shows which numbers were already used.
    if (report.lease_applied <= kLeaseNumberMax) ledger_.skip_numbers_up_to(report.lease_applied);
    // A restarted daemon holds no lease, but its predecessor's requests may be in flight until it applies one.
    if (report.lease_applied != 0) ledger_.applied(report.node, report.lease_applied);
    KnownNode& node = nodes_[report.node];
    if (!same_instance) node.previous_instance = node.last.instance;
    node.last = report;
    node.heard_ns = now_ns;
    unsaved_nodes_.insert(report.node);
    for (const JobReport& job : report.jobs) unsaved_jobs_.insert(job.name);
    return {};
}

void Cluster::measure(const NodeReport& report, const NodeReport* last, bool same_instance) {
    std::set<std::string_view> jobs_in_report;
    for (const JobReport& job : report.jobs) {
        jobs_in_report.insert(job.name);
        KnownJob& known = jobs_[job.name];
        const Counters now{.bytes = job.bytes, .busy_s = job.busy_s, .epoch = job.epoch};
        const auto before = known.last_counters.find(report.node);
        const bool counters_continue = same_instance && before != known.last_counters.end() &&
                                       before->second.comparable && job.bytes >= before->second.bytes &&
                                       job.busy_s >= before->second.busy_s;
        if (counters_continue) {
            // An interval has each node at most once: a second report of a node closes it.
            if (known.reported.contains(report.node)) {
                for (const auto& [node, ranks] : known.reported) known.open_interval.ranks += ranks;
                known.ideal.add(known.open_interval);
                known.open_interval = {.ranks = 0};
                known.reported.clear();
            }
            known.open_interval.bytes += job.bytes - before->second.bytes;
            known.open_interval.busy_s += job.busy_s - before->second.busy_s;
            if (known.reported.empty()) known.open_interval.ranks = 0;
            known.reported[report.node] = job.ranks;
        }
        known.last_counters[report.node] = now;
        count_epochs(job.name, known);
    }
    if (last == nullptr) return;
    for (const JobReport& job : last->jobs) {
        if (!jobs_in_report.contains(job.name)) job_left_node(job.name, report.node);
    }
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
    found->second.last_counters.erase(node);
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
    }
    job.spec = std::move(spec);
    if (job.spec) {
        ++registered_count_;
        floors_bytes_per_second_ += job.spec->bandwidth_floor_bytes_per_second;
    }
    // Rounding errors must not outlive the last registered job.
    if (registered_count_ == 0) floors_bytes_per_second_ = 0;
}

Result<void> Cluster::register_job(const JobRegistration& spec) {
    if (auto named = check_name("name", spec.name); !named) return named;
    if (auto good = check_number("weight", spec.weight, false); !good) return good;
    if (spec.weight == 0) return wrong("weight", "must be above 0");
    if (spec.weight < kWeightMin || spec.weight > kWeightMax) return wrong("weight", "is not from 1e-6 to 1e6");
    if (auto good = check_number("epochs", spec.epochs, true); !good) return good;
    if (spec.ideal_bytes_per_second) {
        if (auto good = check_number("ideal_bytes_per_second", *spec.ideal_bytes_per_second, false); !good) return good;
        if (*spec.ideal_bytes_per_second == 0) return wrong("ideal_bytes_per_second", "must be above 0");
    }
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
    if (floors_bytes_per_second_ + spec.bandwidth_floor_bytes_per_second > options_.remote_bytes_per_second) {
        return wrong("bandwidth_floor_bytes_per_second", "the floors of all jobs do not fit the remote's bandwidth");
    }
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
    count_epochs(spec.name, job);
    return {};
}

Result<void> Cluster::remove_job(const std::string& name) {
    const auto found = jobs_.find(name);
    if (found == jobs_.end() || !found->second.spec) {
        return fail(ErrorCode::not_found, "job \"" + name + "\" is not registered");
    }
    if (auto saved = save({.jobs = {{name, std::nullopt}}, .epochs = {{name, std::nullopt}}}); !saved) return saved;
    set_spec(found->second, std::nullopt);
    found->second.epochs.reset();
    unsaved_epochs_.erase(name);
    unsaved_jobs_.insert(name);
    // Measurements of a job that still runs are kept.
    forget_unless_needed(name);
    return {};
}

Result<void> Cluster::pin_quota(const std::string& dataset, std::optional<std::uint64_t> bytes, std::int64_t now_ns) {
    const ClusterState known = state(now_ns);
    const auto found = std::ranges::find(known.datasets, dataset, &ClusterDataset::name);
    if (found == known.datasets.end()) return fail(ErrorCode::not_found, "no node has a dataset \"" + dataset + "\"");
    if (!bytes) {
        if (auto saved = save({.pins = {{dataset, std::nullopt}}}); !saved) return saved;
        pins_.erase(dataset);
        return {};
    }
    double capacity = 0;
    for (const ClusterNode& node : known.nodes) {
        capacity += static_cast<double>(node.memory_bytes) + static_cast<double>(node.disk_bytes);
    }
    double others = 0;
    for (const ClusterDataset& other : known.datasets) {
        if (other.name == dataset) continue;
        double fixed = 0;
        for (const NodeCache& held : other.held) fixed += static_cast<double>(held.bytes());
        const auto pin = pins_.find(other.name);
        others += pin == pins_.end() ? fixed : std::max(fixed, pinned_bytes(known, other, pin->second));
    }
    const double most = std::max(0.0, capacity - others);
    if (static_cast<double>(*bytes) > most) {
        const auto text = [](double size) { return format_bytes(static_cast<std::uint64_t>(size)); };
        return fail(ErrorCode::no_space, "dataset \"" + dataset + "\" cannot have " +
                                             text(static_cast<double>(*bytes)) + ": at most " + text(most) +
                                             " is free, because the nodes' caches have " + text(capacity) +
                                             " and other datasets' quotas that operators fixed have " + text(others));
    }
    if (auto saved = save({.pins = {{dataset, *bytes}}}); !saved) return saved;
    pins_[dataset] = *bytes;
    return {};
}

Result<void> Cluster::set_remote(double bytes_per_second) {
    if (auto good = check_number("remote_bytes_per_second", bytes_per_second, false); !good) return good;
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
    if (found == jobs_.end() || !found->second.spec) return kUnlimited;
    const double declared = found->second.spec->epochs;
    if (!found->second.epochs) return declared;
    // Negative if the job was restarted from an earlier epoch.
    const double finished =
        static_cast<double>(found->second.epochs->last) - static_cast<double>(found->second.epochs->first);
    return std::max(std::min(declared, 1.0), declared - finished);
}

double Cluster::ideal_of(const std::string& job) const {
    if (const auto measured = measured_ideal(job)) return std::min(*measured, kRateMax);
    const auto found = jobs_.find(job);
    if (found != jobs_.end() && found->second.spec && found->second.spec->ideal_bytes_per_second) {
        return *found->second.spec->ideal_bytes_per_second;
    }
    // The job may turn out to need the whole remote.
    return std::max(1.0, options_.remote_bytes_per_second);
}

Result<std::uint64_t> Cluster::replan(std::int64_t now_ns) {
    ClusterState now = state(now_ns);
    auto plan = assign(now, options_.objective);
    if (!plan) return std::unexpected(plan.error().within("the cluster as reported"));
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
    planned_jobs_.assign(planned_state_.nodes.size(), {});
    planned_datasets_.assign(planned_state_.nodes.size(), {});
    for (std::uint32_t j = 0; j < plan_.jobs.size(); ++j) {
        for (const GpuShare& share : placement_of(planned_state_, plan_, j)) planned_jobs_[share.node].push_back(j);
    }
    for (std::uint32_t i = 0; i < plan_.datasets.size(); ++i) {
        for (const NodeCache& quota : planned_state_.datasets[i].quotas) planned_datasets_[quota.node].push_back(i);
    }
}

// Relies on state() listing nodes by name.
std::optional<std::uint32_t> Cluster::planned_index(const std::string& node) const {
    const auto& nodes = planned_state_.nodes;
    const auto found = std::ranges::lower_bound(nodes, node, {}, &ClusterNode::name);
    if (found == nodes.end() || found->name != node) return std::nullopt;
    return static_cast<std::uint32_t>(found - nodes.begin());
}

}  // namespace larder::allocator
