#include "tools/simulate/simulate_options.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <set>

#include "allocator/protocol/objective.h"
#include "scheduler/simulator/tenants.h"
#include "tools/cli/unit_options.h"

namespace larder::cli {
namespace {

std::string comma_separated(const std::vector<std::string_view>& names) {
    std::string text;
    for (const std::string_view name : names) text += (text.empty() ? "" : ", ") + std::string(name);
    return text;
}

// Parses "4000-4999".
Result<scheduler::MeasuredJobs> parse_measured(std::string_view text) {
    const auto number = [](std::string_view digits) -> std::optional<std::size_t> {
        std::size_t value = 0;
        const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
        return error == std::errc{} && rest == digits.data() + digits.size() ? std::optional(value) : std::nullopt;
    };
    const std::size_t dash = std::min(text.find('-'), text.size());
    const auto first = number(text.substr(0, dash));
    const auto last = dash < text.size() ? number(text.substr(dash + 1)) : std::nullopt;
    if (!first || !last || *last < *first || *last == std::numeric_limits<std::size_t>::max()) {
        return fail(ErrorCode::invalid_argument,
                    "--measure: \"" + std::string(text) + "\" is not FIRST-LAST, such as 4000-4999");
    }
    return scheduler::MeasuredJobs{.begin = *first, .end = *last + 1};
}

}  // namespace

Result<void> SimulateOptions::settle() {
    scenario.gpus.clear();
    for (const std::string& text : gpus) {
        auto group = scheduler::parse_gpu_group(text);
        if (!group) return std::unexpected(group.error().within("--gpus"));
        scenario.gpus.push_back(std::move(*group));
    }
    if (!tenants.empty()) {
        auto read = scheduler::read_tenants(tenants);
        if (!read) return std::unexpected(read.error());
        scenario.workload_options.tenants = std::move(*read);
    }
    if (!tenant_weights.empty()) {
        auto weights = scheduler::read_tenant_weights(tenant_weights);
        if (!weights) return std::unexpected(weights.error());
        scenario.workload_options.tenant_weights = std::move(*weights);
    }
    if (!measure.empty()) {
        auto measured = parse_measured(measure);
        if (!measured) return std::unexpected(measured.error());
        scenario.measured = *measured;
    }
    scenario.node_losses.clear();
    for (const std::string& text : node_losses) {
        auto loss = scheduler::parse_node_loss(text);
        if (!loss) return std::unexpected(loss.error().within("--lose-node"));
        scenario.node_losses.push_back(std::move(*loss));
    }
    scheduler::SimulationOptions& simulation = scenario.simulation;
    simulation.storage.cache_bytes = static_cast<double>(cache_bytes.value_or(0));
    simulation.storage.remote_bytes_per_second = remote_bytes_per_second.value_or(1e15);
    simulation.checkpoints_share_remote = checkpoint_bandwidth == "remote";
    if (!checkpoint_bandwidth.empty() && !simulation.checkpoints_share_remote) {
        const auto rate = parse_bytes_per_second(checkpoint_bandwidth);
        if (!rate) return std::unexpected(rate.error().within("--checkpoint-bandwidth"));
        simulation.checkpoint_bytes_per_second = *rate;
    }
    simulation.node_disk_bytes_per_second = node_disk_bytes_per_second.value_or(scheduler::kNever);
    simulation.node_nic_bytes_per_second = node_nic_bytes_per_second.value_or(scheduler::kNever);
    simulation.cache.own_caches = own_caches;
    simulation.reported_plans = reported_plans;
    simulation.storage_aware = !storage_blind;
    simulation.cache.epochs_known = epochs_known != "no";
    simulation.places_by_plan = placement == "plan";
    simulation.seed = scenario.workload_options.seed;
    return {};
}

void add_trace_options(CLI::App& app, SimulateOptions& options) {
    scheduler::ScenarioOptions& scenario = options.scenario;
    app.add_option("TRACE", scenario.trace,
                   "A trace (see docs/simulating.md), poisson:JOBS_PER_HOUR,JOBS, gavel:JOBS_PER_HOUR,JOBS or "
                   "chronus:FILE,JOBS");
    app.add_flag("--skip-bad", scenario.trace_options.skip_bad, "Skip invalid rows, and count them");
    app.add_option("--jobs", scenario.trace_options.jobs_max, "Use only the first N jobs");
    app.add_option("--workload", scenario.workload,
                   "Table of the models and datasets that jobs train on; default: see larder simulate workload");
    CLI::Option* const throughputs =
        app.add_option("--throughputs", scenario.throughputs,
                       "File of measured throughputs as Gavel publishes them (JSON), in place of --workload");
    app.add_option("--pair-throughputs", scenario.pair_throughputs,
                   "File of measured throughputs of two jobs on one GPU (CSV), for policies that let jobs share GPUs")
        ->needs(throughputs);
    app.add_option("--throughput-table", scenario.throughput_table, "The table in that file")
        ->default_val("simulation");
    app.add_option("--seed", scenario.workload_options.seed,
                   "Seed for drawing models, datasets, arrivals and failures");
    app.add_option(
        "--dataset-copies", scenario.workload_options.dataset_copies,
        "Copies of each dataset, each job reads one; 0: each job has a copy of its own; default: as in the table");
    app.add_option("--deadlines", scenario.workload_options.deadlines_part,
                   "Give this fraction of the jobs strict deadlines, where the trace has none")
        ->check(CLI::Range(0.0, 1.0));
    app.add_option("--opportunistic", scenario.workload_options.opportunistic_part,
                   "Let this fraction of the preemptible jobs without deadlines have no claim to GPUs")
        ->check(CLI::Range(0.0, 1.0));
    CLI::Option* const tenants = app.add_option(
        "--tenants", options.tenants,
        "TOML file of [scheduler.tenant.NAME] tables with weight, parent and gpu_quota, as in the allocator's config");
    app.add_option("--tenant-weights", options.tenant_weights, "CSV file with a header and one NAME,WEIGHT per line")
        ->excludes(tenants);
    app.add_option("--durations-longer", scenario.workload_options.duration_factor, "Multiply durations by this")
        ->check(CLI::PositiveNumber);
}

void add_arrivals_option(CLI::App& app, SimulateOptions& options) {
    app.add_option("--arrivals-faster", options.scenario.workload_options.arrival_speedup,
                   "Divide submission times by this")
        ->check(CLI::PositiveNumber);
}

void add_measure_option(CLI::App& app, SimulateOptions& options) {
    app.add_option("--measure", options.measure,
                   "FIRST-LAST: report completion times, queueing and fairness of these jobs only, counted from 0 in "
                   "the order of submission; the other jobs run too");
}

void add_gpu_options(CLI::App& app, SimulateOptions& options) {
    app.add_option("--gpus", options.gpus,
                   "GPUS or TYPE:GPUS (v100 if no type is named), separated by commas; default: 96")
        ->delimiter(',')
        ->allow_extra_args(false);
    app.add_option("--gpus-per-node", options.scenario.gpus_per_node, "GPUs of every node")->capture_default_str();
    app.add_option("--cells", options.scenario.cells,
                   "Cells of tenants (TOML), in place of --gpus: see docs/policies.md");
}

void add_cluster_options(CLI::App& app, SimulateOptions& options) {
    scheduler::SimulationOptions& simulation = options.scenario.simulation;
    add_gpu_options(app, options);
    app.add_option("--checkpoint-bandwidth", options.checkpoint_bandwidth,
                   "Bandwidth of all checkpoints together, or remote: they share the remote's with the data; default: "
                   "checkpoints take no time")
        ->type_name("RATE|remote");
    add_rate_option(app, "--node-disk", options.node_disk_bytes_per_second,
                    "Read rate of each node's cache disk; default: no limit");
    add_rate_option(app, "--node-network", options.node_nic_bytes_per_second,
                    "Bandwidth of each node's network, each way; default: no limit");
    app.add_flag("--own-caches", options.own_caches,
                 "A node's cache serves only the jobs that run there; default: all nodes' cache is one pool");
    app.add_option("--placement", options.placement,
                   "How places for a job are compared: plan (by the plan that cache and bandwidth get, if nodes matter "
                   "to it), or fit (few nodes, near the data)")
        ->capture_default_str()
        ->check(CLI::IsMember({"plan", "fit"}));
    app.add_flag("--reported-plans", options.reported_plans,
                 "Plan as the daemons do, from reports once a second; for traces of hours, not months");
    app.add_option("--checkpoint-interval", simulation.checkpoint_interval_s, "Seconds between a job's checkpoints")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    app.add_option("--node-lifetime", simulation.node_lifetime_s,
                   "Mean seconds between a node's failures; default: never")
        ->check(CLI::PositiveNumber);
    app.add_option("--lose-node", options.node_losses,
                   "NODE@SECONDS: this node is lost then and does not come back; nodes are TYPE-0, TYPE-1, ...")
        ->delimiter(',')
        ->allow_extra_args(false);
    app.add_option("--node-repair", simulation.node_repair_s, "Seconds until a failed node is back")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
}

void add_policy_options(CLI::App& app, SimulateOptions& options) {
    scheduler::PolicyOptions& policy = options.scenario.simulation.policy;
    app.add_flag("--storage-blind", options.storage_blind,
                 "Let policies take f* as every job's rate, as policies without knowledge of storage do");
    app.add_option("--objective", options.scenario.objective,
                   "Objective of the plan: " + allocator::objective_names() +
                       ", except pinned; default: max-min under fair policies, throughput under fifo, else efficiency");
    app.add_option("--round", policy.round_s, "Seconds of a round, for policies that slice time")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    app.add_option("--queues", policy.queue_gpu_s, "las: GPU seconds at which a job goes down a queue")
        ->delimiter(',')
        ->allow_extra_args(false);
    app.add_option("--promote-after", policy.promote_after,
                   "las: a job that waited this many times its run time moves up to the first queue")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    app.add_option("--interval", policy.interval_s, "astraea: seconds of one interval of the window")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    app.add_option("--window-intervals", policy.window_intervals, "astraea: number of intervals in the window")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    app.add_option("--starve", policy.starve_s,
                   "astraea: a job that waited this many seconds without any service goes first")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    app.add_option("--lease", policy.lease_s, "astraea, chronus: seconds of a lease")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    app.add_flag("--exact", policy.exact, "chronus: admit jobs by an integer program");
}

void add_knowledge_options(CLI::App& app, SimulateOptions& options, bool both) {
    app.add_option("--epochs-known", options.epochs_known,
                   std::string("Whether cache systems know how many epochs each job has to go: yes, no") +
                       (both ? ", or both in turn" : ""))
        ->capture_default_str()
        ->check(CLI::IsMember(both ? std::set<std::string>{"yes", "no", "both"} : std::set<std::string>{"yes", "no"}));
    app.add_option("--rate-error", options.scenario.simulation.rate_error,
                   "Tell plans and policies an f* that is off by up to this part, drawn for each job; below 1")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 0.99));
}

void add_choice_options(CLI::App& app, SimulateOptions& options) {
    app.add_option("--policy", options.scenario.policy,
                   "The policy, one of " + comma_separated(scheduler::policy_names()))
        ->capture_default_str();
    app.add_option("--cache", options.scenario.cache,
                   "uniform+joint, uniform, lru, static-per-job, coordl, whole-dataset, quiver, none; +RULE adds the "
                   "bandwidth rule, such as lru+first-come")
        ->capture_default_str();
    app.add_option("--bandwidth-rule", options.scenario.bandwidth_rule,
                   "Bandwidth rule: joint, fair or first-come; default: joint with uniform, else fair");
    add_bytes_option(app, "--cache-size", options.cache_bytes, "Cache of the whole cluster; default: 0");
    add_rate_option(app, "--bandwidth", options.remote_bytes_per_second, "Bandwidth of the remote; default: no limit");
}

}  // namespace larder::cli
