// How long does a full decision take on a large cluster? Times everything the daemon does for one: the scheduler's tick
// (its view of the allocator's state, snapshot, a policy's choice, placement near data, records, turns) and the plan
// for all running jobs: 10,000 jobs on 4,000 nodes of 8 GPUs with 8 of 1,000 datasets each, with quotas in force and
// filled, the floors of leases, and a tenth of the nodes too slow. The first decision places every job. Before each
// later one, some jobs end and as many are submitted. Runs every policy on one type of GPU, and the policies that solve
// linear programs also on three types. Two more cases are deadlines that cannot all be promised, and 3,900 cells of one
// node, each filled by a gang. Beside it stands the time of the parts alone: snapshot, choice and placement, and a plan
// for a state without quotas, floors and slow nodes.

#include "scheduler/decide.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <cstdio>
#include <deque>

#include "allocator/assign.h"
#include "base/clock.h"
#include "base/heap.h"
#include "bench/bench_options.h"
#include "bench/live_site.h"
#include "bench/median.h"
#include "scheduler/cells/cells.h"
#include "scheduler/live/live_snapshot.h"
#include "scheduler/near_nodes.h"
#include "scheduler/placement/free_pool.h"
#include "scheduler/simulator/random.h"
#include "scheduler/simulator/scenario.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

namespace json = boost::json;
using namespace scheduler;

struct Row {
    std::string_view policy;
    Setting setting = Setting::one_type;

    std::string name() const {
        switch (setting) {
            case Setting::one_type: break;
            case Setting::three_types: return std::string(policy) + ", 3 types";
            case Setting::cells: return std::string(policy) + ", cells";
            case Setting::tight_deadlines: return std::string(policy) + ", tight";
        }
        return std::string(policy);
    }
};

// Each dataset is cached on all nodes, unevenly.
std::uint64_t cached_bytes(std::uint32_t dataset, std::uint32_t node) {
    return 1'000'000 + (std::uint64_t{dataset} * 7919 + std::uint64_t{node} * 104'729) % 1'000'000;
}

// Times the daemon's work before a decision; returns the median of several runs.
double live_snapshot_ms(const DecideSize& size) {
    const GpuCluster cluster = make_cluster(std::vector<GpuGroup>{{.type = "a", .gpus = size.nodes * 8}}, 8);
    FreePool pool(cluster);
    JobQueue queue(cluster, pool, 1000);
    const std::vector<Tenant> tenants{{.name = "default"}};
    StorageView view;
    for (const GpuNode& node : cluster.nodes) view.nodes.push_back(node.name);
    for (std::uint32_t d = 0; d < size.datasets; ++d) {
        view.datasets.push_back({.name = "d" + std::to_string(d), .size_bytes = 1e12, .cached_bytes = 1e9});
        auto& on = view.cached_on.emplace_back();
        for (std::uint32_t n = 0; n < size.nodes; ++n) on.push_back({n, cached_bytes(d, n)});
    }
    for (JobId id = 1; id <= size.running + size.waiting; ++id) {
        JobRecord job{.id = id, .asked = {.name = "j" + std::to_string(id), .command = {"train"}, .directory = "/"}};
        job.asked.dataset = "d" + std::to_string(id % size.datasets);
        job.asked.epochs = 10;
        if (id <= size.running) {
            job.phase = Phase::running;
            job.held = Allotment{.gpus = {{cluster.nodes[id % size.nodes].name, 1ULL << (id / size.nodes)}},
                                 .count = 1,
                                 .gpu_type = "a"};
            view.jobs[job.asked.name] = {.ideal = 1e8, .predicted = 1e8};
        }
        queue.restore(std::move(job));
    }
    const SteadyClock clock;
    std::vector<double> times_ms;
    for (int i = 0; i < size.decisions; ++i) {
        const std::int64_t begin_ns = clock.now_ns();
        const LiveSnapshot live(queue, cluster, view, tenants, true, 1000);
        times_ms.push_back(static_cast<double>(clock.now_ns() - begin_ns) / 1e6);
    }
    return median(times_ms);
}

// Owns the data that a Snapshot refers to, and carries out decisions as the daemon does.
class Site {
public:
    Site(const DecideSize& size, Setting setting) : size_(size), setting_(setting), random_(1) {
        cluster_ = cluster_of(size, setting);
        for (const std::string& type : cluster_.gpu_types) types_.push_back({.name = type});
        for (const GpuNode& node : cluster_.nodes) types_[node.gpu_type].gpus += node.gpus;
        const std::vector<std::string> owner{"0"};
        if (setting == Setting::cells) {
            pool_ = std::move(*Cells::create(make_cells_config(cluster_), cluster_, owner));
        } else {
            pool_ = std::make_unique<FreePool>(cluster_);
        }
        for (std::uint32_t t = 0; t < 20; ++t) {
            tenants_.push_back({.name = std::to_string(t), .weight = 1 + random_.uniform()});
            tenants_.back().gpu_time = {.interval = 0, .gpu_s_by_interval = std::vector(24, 1000 * random_.uniform())};
        }
        for (std::uint32_t d = 0; d < size.datasets; ++d) {
            datasets_.push_back({.name = "d" + std::to_string(d), .size_bytes = 1e10 * (1 + 199 * random_.uniform())});
        }
        storage_ = {.cache_bytes = size.nodes * 1e12 / 8, .remote_bytes_per_second = 1e11};
        const std::uint32_t jobs =
            setting == Setting::cells ? size.nodes * 39 / 40 + size.ended : size.running + size.waiting;
        for (std::uint32_t j = 0; j < jobs; ++j) add_job();
    }

    // Ends some jobs, submits as many and advances time.
    void end_and_submit_jobs() {
        std::uint32_t ended = 0;
        for (std::size_t i = 0; i < jobs_.size() && ended < size_.ended;) {
            JobState& job = states_[ids_[i]];
            if (!job.running || random_.uniform() > 0.02) {
                ++i;
                continue;
            }
            if (job.packed_with == nullptr) pool_->release(ids_[i]);
            job.running = false;
            jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
            ids_.erase(ids_.begin() + static_cast<std::ptrdiff_t>(i));
            ++ended;
        }
        for (std::uint32_t j = 0; j < ended; ++j) add_job();
        now_s_ += kBetweenDecisions_s;
        for (JobState& job : states_) {
            if (!job.running) continue;
            add_run(job, now_s_ - kBetweenDecisions_s, now_s_);
            job.remaining_bytes = std::max(1.0, job.remaining_bytes - kBetweenDecisions_s * job.rate_bytes_per_second);
        }
    }

    struct Times {
        double decide_ms = 0;
        double assign_ms = 0;
    };
    Result<Times> step(Policy& policy) {
        const std::int64_t begin_ns = clock_.now_ns();
        near_.begin(datasets_.size());
        looked_up_.assign(datasets_.size(), false);
        const Snapshot snapshot{.now_s = now_s_,
                                .gpu_types = types_,
                                .jobs = jobs_,
                                .tenants = tenants_,
                                .datasets = datasets_,
                                .storage = storage_};
        const auto actions =
            decide(policy, *pool_, {.snapshot = snapshot, .ids = ids_, .near = &Site::near, .context = this});
        if (!actions) return std::unexpected(actions.error());
        const std::int64_t decided_ns = clock_.now_ns();
        carry_out(*actions);
        fill_cluster_state();
        const std::int64_t assign_began_ns = clock_.now_ns();
        allocator::Objective objective{.kind = objective_of(policy.name()), .place_jobs = false};
        const auto plan = allocator::assign(state_, objective);
        if (!plan) return std::unexpected(plan.error());
        const std::int64_t end_ns = clock_.now_ns();
        for (std::size_t i = 0; i < planned_.size(); ++i) {
            planned_[i]->rate_bytes_per_second = plan->jobs[i].steady_bytes_per_second;
        }
        return Times{.decide_ms = static_cast<double>(decided_ns - begin_ns) / 1e6,
                     .assign_ms = static_cast<double>(end_ns - assign_began_ns) / 1e6};
    }
    std::size_t running() const { return planned_.size(); }

private:
    static std::span<const std::uint32_t> near(const void* self, std::uint32_t job) {
        const auto& site = *static_cast<const Site*>(self);
        const std::uint32_t dataset = site.jobs_[job]->spec->dataset;
        if (!site.looked_up_[dataset]) {
            site.looked_up_[dataset] = true;
            for (std::uint32_t n = 0; n < site.size_.nodes; ++n) {
                site.near_.add(dataset, n, static_cast<double>(cached_bytes(dataset, n)));
            }
            site.near_.finish(dataset);
        }
        return site.near_.holders_of(dataset);
    }

    void add_job() {
        const auto id = static_cast<std::uint32_t>(states_.size());
        scheduler::JobSpec& spec = specs_.emplace_back();
        spec.name = "j" + std::to_string(id);
        spec.tenant = static_cast<std::uint32_t>(random_.below(tenants_.size()));
        if (setting_ == Setting::cells) spec.tenant = 0;
        spec.submit_s = now_s_;
        constexpr std::uint32_t kGangs[] = {1, 1, 2, 2, 4, 4, 4, 8};
        spec.gpus = kGangs[random_.below(std::size(kGangs))];
        if (setting_ == Setting::cells) spec.gpus = 8;
        spec.gpus_min = spec.gpus_max = spec.gpus;
        spec.ideal_bytes_per_second = {spec.gpus * 1e8 * (0.1 + random_.uniform())};
        while (spec.ideal_bytes_per_second.size() < types_.size()) {
            spec.ideal_bytes_per_second.push_back(spec.ideal_bytes_per_second.back() * (0.2 + 0.8 * random_.uniform()));
        }
        spec.dataset = static_cast<std::uint32_t>(random_.below(datasets_.size()));
        spec.total_bytes = spec.ideal_bytes_per_second[0] * 3600 * (1 + 20 * random_.uniform());
        if (random_.uniform() < 0.3) {
            spec.service = ServiceClass::strict_deadline;
            // Deadlines assume the job is storage bound like all others: either with time to spare, or about as tight
            // as in Chronus's own traces.
            const double share = storage_.remote_bytes_per_second * spec.gpus / (8.0 * size_.nodes);
            const double alone_s = spec.total_bytes / std::min(spec.ideal_bytes_per_second[0], share);
            const double slack =
                setting_ == Setting::tight_deadlines ? 1.1 + 1.9 * random_.uniform() : 4 + 4 * random_.uniform();
            spec.deadline_s = now_s_ + 3600 + alone_s * slack;
        }
        JobState& state = states_.emplace_back();
        state.spec = &spec;
        state.remaining_bytes = spec.total_bytes;
        state.waiting_since_s = now_s_;
        state.ran_s_by_type.resize(types_.size());
        jobs_.push_back(&state);
        ids_.push_back(id);
    }

    void carry_out(const Actions& actions) {
        for (const std::uint32_t at : actions.stops) {
            JobState& job = states_[ids_[at]];
            job.running = false;
            job.waiting_since_s = now_s_;
            job.packed_with = nullptr;
        }
        for (const Start& start : actions.starts) {
            JobState& job = states_[ids_[start.job]];
            note_start(job, start, now_s_);
            if (start.packed_with) job.packed_with = &states_[ids_[*start.packed_with]];
        }
        note_promises(actions, now_s_, [&](std::uint32_t at) -> JobState& { return states_[ids_[at]]; });
    }

    void fill_cluster_state() {
        state_.remote_bytes_per_second = storage_.remote_bytes_per_second;
        if (state_.nodes.empty()) {
            for (const GpuNode& node : cluster_.nodes) {
                state_.nodes.push_back({.name = node.name, .gpus = 2 * node.gpus, .disk_bytes = 125'000'000'000});
            }
            for (const DatasetState& dataset : datasets_) {
                state_.datasets.push_back(
                    {.name = dataset.name, .size_bytes = static_cast<std::uint64_t>(dataset.size_bytes)});
            }
        }
        state_.jobs.clear();
        planned_.clear();
        for (std::size_t i = 0; i < jobs_.size(); ++i) {
            JobState& job = states_[ids_[i]];
            if (!job.running) continue;
            planned_.push_back(&job);
            allocator::ClusterJob& planned = state_.jobs.emplace_back();
            planned.name = job.spec->name;
            planned.dataset = job.spec->dataset;
            planned.gpus = job.gpus;
            planned.ideal_bytes_per_second = job.spec->ideal_bytes_per_second[job.gpu_type];
            for (const NodeGpus& share : job.placement)
                planned.placement.push_back({.node = share.node, .gpus = share.count()});
        }
    }

    const DecideSize size_;
    const Setting setting_;
    Random random_;
    SteadyClock clock_;
    double now_s_ = 0;
    GpuCluster cluster_;
    std::vector<GpuTypeState> types_;
    std::unique_ptr<Placer> pool_;
    std::vector<Tenant> tenants_;
    std::vector<DatasetState> datasets_;
    mutable NearNodes near_;  // for the datasets asked for, as in LiveSnapshot
    mutable std::vector<bool> looked_up_;
    Storage storage_;
    std::deque<scheduler::JobSpec> specs_;
    std::deque<JobState> states_;
    std::vector<const JobState*> jobs_;
    std::vector<JobId> ids_;
    allocator::ClusterState state_;
    std::vector<JobState*> planned_;
};

// Returns the median and the longest time of the parts alone.
Result<std::pair<double, double>> measure_parts(const DecideSize& size, const Row& row, double snapshot_ms) {
    const auto policy = make_policy(row.policy, {});
    if (!policy) return std::unexpected(policy.error());
    Site site(size, row.setting);
    if (const auto first = site.step(**policy); !first) return std::unexpected(first.error().within(row.name()));
    std::vector<double> all_ms;
    for (int i = 0; i < size.decisions; ++i) {
        site.end_and_submit_jobs();
        const auto times = site.step(**policy);
        if (!times) return std::unexpected(times.error().within(row.name()));
        all_ms.push_back(snapshot_ms + times->decide_ms + times->assign_ms);
    }
    return std::pair(median(all_ms), std::ranges::max(all_ms));
}

Result<json::object> measure(const DecideSize& size, const Row& row, double snapshot_ms) {
    auto policy = make_policy(row.policy, {});
    if (!policy) return std::unexpected(policy.error());
    LiveSite site(size, row.setting, std::move(*policy));
    const auto first = site.step();
    if (!first) return std::unexpected(first.error().within(row.name()));
    std::vector<double> state_ms, view_ms, decision_ms, plan_ms, all_ms, cpu;
    for (int i = 0; i < size.decisions; ++i) {
        const auto costs = site.step();
        if (!costs) return std::unexpected(costs.error().within(row.name()));
        state_ms.push_back(costs->state.wall_ms);
        view_ms.push_back(costs->view.wall_ms);
        decision_ms.push_back(costs->decision.wall_ms);
        plan_ms.push_back(costs->plan.wall_ms);
        all_ms.push_back(costs->all().wall_ms);
        cpu.push_back(costs->all().cpu_ms);
    }
    const auto parts = measure_parts(size, row, snapshot_ms);
    if (!parts) return std::unexpected(parts.error());
    return json::object{{"policy", row.policy},
                        {"gpu_types", row.setting == Setting::three_types ? 3 : 1},
                        {"cells", row.setting == Setting::cells},
                        {"tight_deadlines", row.setting == Setting::tight_deadlines},
                        {"nodes", size.nodes},
                        {"datasets_per_node", size.datasets_per_node},
                        {"running", site.running()},
                        {"quotas", site.quotas()},
                        {"load", load_average()},
                        {"first_ms", first->all().wall_ms},
                        {"first_cpu_ms", first->all().cpu_ms},
                        {"state_ms", median(state_ms)},
                        {"view_ms", median(view_ms)},
                        {"decide_ms", median(decision_ms)},
                        {"plan_ms", median(plan_ms)},
                        {"decision_ms", median(all_ms)},
                        {"decision_ms_max", std::ranges::max(all_ms)},
                        {"decision_cpu_ms", median(cpu)},
                        {"decision_cpu_ms_max", std::ranges::max(cpu)},
                        {"parts_ms", parts->first},
                        {"parts_ms_max", parts->second}};
}

// Returns a row for every policy, a second row for policies that share several types by linear programs, and one row
// each for tight deadlines and for cells.
std::vector<Row> rows_of(const std::vector<std::string>& policies) {
    std::vector<Row> rows;
    const auto add = [&](std::string_view policy, Setting setting) {
        if (policies.empty() || std::ranges::find(policies, policy) != policies.end())
            rows.push_back({policy, setting});
    };
    for (const std::string_view name : policy_names()) add(name, Setting::one_type);
    for (const std::string_view name :
         {"max-min", "max-min-agnostic", "makespan", "finish-time-fairness", "water-filling"}) {
        add(name, Setting::three_types);
    }
    add("chronus", Setting::tight_deadlines);
    add("tenant-fifo", Setting::cells);
    return rows;
}

}  // namespace

Result<json::value> decide_bench(const BenchOptions& options) {
    keep_freed_memory();  // as larder-allocator does
    DecideSize size;
    if (options.quick) size = {.nodes = 50, .running = 120, .waiting = 20, .datasets = 10, .ended = 5, .decisions = 2};
    json::array rows;
    cli::Table table({"POLICY", ">RUNNING", ">FIRST", ">STATE", ">VIEW", ">TICK", ">PLAN", ">ALL", ">LONGEST", ">CPU",
                      ">LONGEST CPU", ">PARTS ALONE"});
    const auto ms = [](const json::value& value) {
        char text[32];
        std::snprintf(text, sizeof text, "%.1f ms", value.to_number<double>());
        return std::string(text);
    };
    const double snapshot_ms = live_snapshot_ms(size);
    const auto add = [&](const DecideSize& one_size, const Row& one, const std::string& name) -> Result<void> {
        auto row = measure(one_size, one, snapshot_ms);
        if (!row) return std::unexpected(row.error());
        table.add({name, std::to_string(row->at("running").to_number<std::uint64_t>()), ms(row->at("first_ms")),
                   ms(row->at("state_ms")), ms(row->at("view_ms")), ms(row->at("decide_ms")), ms(row->at("plan_ms")),
                   ms(row->at("decision_ms")), ms(row->at("decision_ms_max")), ms(row->at("decision_cpu_ms")),
                   ms(row->at("decision_cpu_ms_max")), ms(row->at("parts_ms"))});
        rows.push_back(std::move(*row));
        return {};
    };
    for (const Row& one : rows_of(options.policies)) {
        if (auto added = add(size, one, one.name()); !added) return std::unexpected(added.error());
    }
    if (options.policies.empty()) {
        DecideSize everywhere = size;
        everywhere.datasets_per_node = size.datasets;
        auto added = add(everywhere, {.policy = "fifo"}, "fifo, all datasets on all nodes");
        if (!added) return std::unexpected(added.error());
    }
    if (!options.json) std::printf("load %.1f\n", load_average());
    if (!options.json) std::printf("%s", table.text().c_str());
    return rows;
}

}  // namespace larder::bench
