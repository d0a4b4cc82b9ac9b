#include "bench/joint_events.h"

#include <boost/json/object.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/units.h"
#include "bench/convergence.h"
#include "bench/joint_cluster.h"
#include "bench/joint_jobs.h"
#include "tests/cluster/rate_watch.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace json = boost::json;
namespace {

constexpr std::int64_t kSamplePeriod_ns = 250'000'000;
// Smaller relative changes of a rate or quota are ignored.
constexpr double kChange_min = 0.01;

struct Event {
    std::string name;
    std::string subject;
    std::vector<std::string> jobs;  // affected, whatever the plan says about them
    std::function<Result<void>()> trigger;
    std::function<bool(const json::object& plan)> noticed;  // true if the plan in force takes the event into account
};

const json::object* find_named(const json::object& plan, const char* list, const std::string& name) {
    for (const json::value& entry : plan.at(list).as_array()) {
        if (entry.at("name").as_string() == std::string_view(name)) return &entry.as_object();
    }
    return nullptr;
}

std::uint64_t bytes_at(const json::object& plan, const std::string& dataset, const char* key) {
    const json::object* found = find_named(plan, "datasets", dataset);
    return found == nullptr ? 0 : found->at(key).to_number<std::uint64_t>();
}

double steady_rate(const json::object& plan, const std::string& job) {
    const json::object* found = find_named(plan, "jobs", job);
    return found == nullptr ? 0 : found->at("steady_bytes_per_second").to_number<double>();
}

bool is_changed(double before, double after) {
    return std::abs(after - before) > kChange_min * std::max(before, after);
}

class EventsRun {
public:
    EventsRun(JointScenario scenario, JointCluster& cluster, const cli::InterruptWatch& interrupt)
        : scenario_(std::move(scenario)), cluster_(cluster), interrupt_(interrupt) {
        for (const JointJob& job : scenario_.jobs) start(job);
    }

    // Returns {settled, events}.
    Result<json::object> run();

private:
    struct Outcome {
        double seconds = 0;
        bool converged = false;
        double largest_error = 0;
        json::object plan;                                // in force at that time
        std::map<std::string, std::uint64_t> read_bytes;  // by job, until that time
        std::optional<double> cached_seconds;             // until the cached bytes match the quotas
    };

    void start(const JointJob& job) {
        runs_.push_back(run_on_larder(scenario_, job, cluster_.node(job.node).socket()));
    }
    std::vector<Event> events();
    Result<json::object> outcome_of(const Event& event);
    // Waits until the cluster has converged to a plan that takes the event into account, and the cached bytes
    // match its quotas. If the quotas change while the cache fills, the convergence seen so far does not count.
    Result<Outcome> converge(const Event& event);
    // Returns the job with the longest epoch among jobs whose rates or quotas the event changed, or among all jobs if
    // it changed nothing.
    std::pair<std::string, double> slowest_epoch(const Event& event, const json::object& before, const Outcome& outcome,
                                                 const std::map<std::string, std::uint64_t>& read_before) const;

    JointScenario scenario_;
    JointCluster& cluster_;
    const cli::InterruptWatch& interrupt_;
    const SteadyClock clock_;
    JointRuns runs_;
};

std::vector<Event> EventsRun::events() {
    const JointJob& ending = scenario_.jobs[2];
    const JointJob& robbed = scenario_.jobs[4];
    const JointJob joining{"audio", ending.node, ending.dataset, ending.ideal_bytes_per_second};
    const std::string robbed_dataset = scenario_.datasets[robbed.dataset].name;
    const std::string pinned = scenario_.datasets[scenario_.jobs[3].dataset].name;
    const std::uint64_t pinned_bytes = (scenario_.node_cache_bytes + scenario_.node_disk_bytes) / 4;
    const std::uint64_t robbed_dataset_bytes = scenario_.datasets[robbed.dataset].blocks * scenario_.block_bytes;
    return {
        {.name = "job ends",
         .subject = ending.name,
         .jobs = {},
         .trigger = [this, name = ending.name]() -> Result<void> {
             std::erase_if(runs_, [&](const auto& run) { return run->name() == name; });
             return {};
         },
         .noticed = [name = ending.name](const auto& plan) { return find_named(plan, "jobs", name) == nullptr; }},
        {.name = "job joins",
         .subject = joining.name,
         .jobs = {joining.name},
         .trigger = [this, joining]() -> Result<void> {
             scenario_.jobs.push_back(joining);
             start(joining);
             return cluster_.register_job(joining);
         },
         .noticed = [name = joining.name](const auto& plan) { return find_named(plan, "jobs", name) != nullptr; }},
        {.name = "cache is lost",
         .subject = JointCluster::node_name(robbed.node),
         .jobs = {robbed.name},
         .trigger = [this, node = robbed.node] { return cluster_.lose_cache(node); },
         .noticed =
             [robbed_dataset, robbed_dataset_bytes](const auto& plan) {
                 return bytes_at(plan, robbed_dataset, "cached_bytes") < robbed_dataset_bytes / 8;
             }},
        {.name = "quota is pinned",
         .subject = pinned,
         .jobs = {scenario_.jobs[3].name},
         .trigger = [this, pinned, pinned_bytes] { return cluster_.pin(pinned, pinned_bytes); },
         .noticed = [pinned,
                     pinned_bytes](const auto& plan) { return bytes_at(plan, pinned, "quota_bytes") == pinned_bytes; }},
    };
}

Result<EventsRun::Outcome> EventsRun::converge(const Event& event) {
    const std::int64_t began_ns = clock_.now_ns();
    Outcome outcome;
    std::optional<Convergence> convergence;
    double seconds = 0;
    for (std::int64_t sampled_ns = 0; !outcome.cached_seconds && seconds < scenario_.patience_s;) {
        if (auto paused = pause_between_polls(runs_, interrupt_); !paused) return std::unexpected(paused.error());
        const std::int64_t now_ns = clock_.now_ns();
        seconds = static_cast<double>(now_ns - began_ns) * 1e-9;
        if (now_ns - sampled_ns < kSamplePeriod_ns) continue;
        sampled_ns = now_ns;
        auto plan = cluster_.plan();
        if (!plan) return std::unexpected(plan.error());
        if (!convergence && event.noticed(*plan)) convergence.emplace(cluster_, runs_);
        if (convergence) {
            if (auto sampled = convergence->take_sample(*plan, now_ns); !sampled)
                return std::unexpected(sampled.error());
            if (outcome.converged && !convergence->quotas_are_stable()) outcome.converged = false;
        }
        if (!outcome.converged) {
            outcome.seconds = seconds;
            outcome.plan = std::move(*plan);
            for (const auto& run : runs_) outcome.read_bytes[run->name()] = run->bytes();
            outcome.largest_error = convergence ? convergence->largest_error() : 1;
            outcome.converged = convergence && convergence->reached();
        }
        if (outcome.converged && convergence->cache_matches_quotas()) outcome.cached_seconds = seconds;
    }
    return outcome;
}

std::pair<std::string, double> EventsRun::slowest_epoch(const Event& event, const json::object& before,
                                                        const Outcome& outcome,
                                                        const std::map<std::string, std::uint64_t>& read_before) const {
    std::pair<std::string, double> slowest;
    std::pair<std::string, double> slowest_of_all;
    for (const auto& run : runs_) {
        const bool is_named = std::ranges::find(event.jobs, run->name()) != event.jobs.end();
        const auto job = std::ranges::find(scenario_.jobs, run->name(), &JointJob::name);
        const std::string& dataset = scenario_.datasets[job->dataset].name;
        const auto quota = [&](const json::object& plan) {
            return static_cast<double>(bytes_at(plan, dataset, "quota_bytes"));
        };
        const bool affected = is_named ||
                              is_changed(steady_rate(before, run->name()), steady_rate(outcome.plan, run->name())) ||
                              is_changed(quota(before), quota(outcome.plan));
        const auto bytes_before = read_before.find(run->name());
        const auto read = static_cast<double>(outcome.read_bytes.at(run->name()) -
                                              (bytes_before == read_before.end() ? 0 : bytes_before->second));
        const auto size = static_cast<double>(scenario_.datasets[job->dataset].blocks * scenario_.block_bytes);
        const double epoch_s = outcome.seconds * size / read;
        if (affected && epoch_s > slowest.second) slowest = {run->name(), epoch_s};
        if (epoch_s > slowest_of_all.second) slowest_of_all = {run->name(), epoch_s};
    }
    return slowest.second > 0 ? slowest : slowest_of_all;
}

Result<json::object> EventsRun::outcome_of(const Event& event) {
    const auto before = cluster_.plan();
    if (!before) return std::unexpected(before.error());
    std::map<std::string, std::uint64_t> read_before;
    for (const auto& run : runs_) read_before[run->name()] = run->bytes();
    cluster_.remote().forget_bursts();
    test::RateWatch watch([this] { return cluster_.remote().bytes(); }, scenario_.remote_bytes_per_second);
    const std::int64_t began_ns = clock_.now_ns();
    if (auto triggered = event.trigger(); !triggered) return std::unexpected(triggered.error().within(event.name));
    const double trigger_s = seconds_since(clock_, began_ns);
    auto outcome = converge(event);
    watch.stop();
    if (!outcome) return std::unexpected(outcome.error().within(event.name));
    outcome->seconds += trigger_s;
    const auto [slowest, epoch_s] = slowest_epoch(event, *before, *outcome, read_before);
    const double epochs = outcome->seconds / epoch_s;
    const auto burst_bytes = static_cast<double>(cluster_.remote().burst_bytes());
    return json::object{
        {"event", event.name},
        {"subject", event.subject},
        {"converged", outcome->converged},
        {"seconds", outcome->seconds},
        {"slowest_job", slowest},
        {"epoch_seconds", epoch_s},
        {"epochs", epochs},
        {"cached_seconds",
         outcome->cached_seconds ? json::value(*outcome->cached_seconds + trigger_s) : json::value(nullptr)},
        {"largest_error", outcome->largest_error},
        {"excess_bytes", watch.excess_bytes()},
        {"burst_bytes", burst_bytes},
        {"ok", outcome->converged && outcome->cached_seconds && epochs <= 1 && watch.excess_bytes() <= burst_bytes}};
}

Result<json::object> EventsRun::run() {
    if (auto read = wait_for_epochs(runs_, 1, interrupt_, [] {}); !read) return std::unexpected(read.error());
    const auto settled = converge({.noticed = [](const auto&) { return true; }});
    if (!settled) return std::unexpected(settled.error());
    json::array results;
    for (const Event& event : events()) {
        auto result = outcome_of(event);
        if (!result) return std::unexpected(result.error());
        results.push_back(std::move(*result));
    }
    return json::object{{"settled", settled->converged}, {"events", std::move(results)}};
}

std::string seconds_text(double seconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f s", seconds);
    return text;
}

}  // namespace

Result<json::object> run_joint_events(const JointScenario& scenario, const std::vector<FileSet>& files,
                                      const std::string& directory, const std::string& objective,
                                      const cli::InterruptWatch& interrupt) {
    auto cluster = JointCluster::start(scenario, files, directory, {.objective = objective});
    if (!cluster) return std::unexpected(cluster.error());
    auto result = EventsRun(scenario, *cluster, interrupt).run();
    if (!result) return result;
    return json::object{{"policy", objective},
                        {"network", cluster->network()},
                        {"settled", result->at("settled")},
                        {"events", std::move(result->at("events"))}};
}

void print_joint_events(const json::array& events) {
    cli::Table table(
        {"event", "what", ">converged in", ">epochs", "slowest job", ">cached in", ">ahead of B by", ">bursts", "ok"});
    for (const json::value& event : events) {
        char epochs[32];
        std::snprintf(epochs, sizeof epochs, "%.2f", event.at("epochs").as_double());
        const auto bytes = [&](const char* key) {
            return format_bytes(static_cast<std::uint64_t>(event.at(key).as_double()));
        };
        table.add(
            {std::string(event.at("event").as_string()), std::string(event.at("subject").as_string()),
             event.at("converged").as_bool() ? seconds_text(event.at("seconds").as_double()) : "never",
             std::string(epochs), std::string(event.at("slowest_job").as_string()),
             event.at("cached_seconds").is_null() ? "not yet" : seconds_text(event.at("cached_seconds").as_double()),
             bytes("excess_bytes"), bytes("burst_bytes"), event.at("ok").as_bool() ? "yes" : "no"});
    }
    std::printf("%s", table.text().c_str());
}

}  // namespace larder::bench
