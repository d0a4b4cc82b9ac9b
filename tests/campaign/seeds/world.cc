#include "tests/campaign/seeds/world.h"

#include <algorithm>

#include "base/server/json_text.h"
#include "scheduler/policy.h"

namespace larder::campaign {

using scheduler::JobId;
using scheduler::Phase;

namespace {

constexpr std::int64_t kSample_ns = 100 * kMillisecond_ns;

}  // namespace

SimulatedWorld::SimulatedWorld(const WorldOptions& options)
    : options_(options), events_(options.prints), random_(options.seed), network_(events_, random_, network_faults_) {
    choose_options();
}

SimulatedWorld::~SimulatedWorld() {
    // Jobs leave their nodes, and what nodes lend has to be gone, before the nodes are.
    bare_.clear();
    controller_.reset();
    machines_.reset();
    nodes_.clear();
}

void SimulatedWorld::choose_options() {
    const std::uint64_t node_count = options_.faults ? 1 + random_.below(4) : 1 + random_.below(2);
    bandwidth_ = 1000.0 * static_cast<double>(random_.between(100, 500));
    burst_bytes_ = 16'384 << random_.below(3);
    const std::uint64_t dataset_count = 1 + random_.below(2);
    for (std::uint64_t d = 0; d < dataset_count; ++d) {
        datasets_.push_back(std::make_unique<SimulatedDataset>(
            "data-" + std::to_string(d), static_cast<std::uint32_t>(random_.between(20, 120)),
            static_cast<std::uint32_t>(random_.between(3'000, 16'000)), random_.below(2) == 0, random_));
    }
    counted_ = std::make_unique<Bandwidth>(events_, burst_bytes_);
    around_ = std::make_unique<Surroundings>(Surroundings{
        .events = events_,
        .random = random_,
        .network = network_,
        .bandwidth = *counted_,
        .datasets = datasets_,
        .remote_faults = remote_faults_,
        .network_faults = network_faults_,
        .nodes = nodes_,
        .ask = [this](const HttpRequest& request,
                      const std::function<void(const HttpResponse&)>& respond) { controller_->ask(request, respond); },
        .reads = reads_.data()});
    allocator::ClusterOptions& cluster = controller_options_.cluster;
    cluster.remote_bytes_per_second = bandwidth_;
    cluster.floor_bytes_per_second = bandwidth_ * 0.02;
    cluster.lease_ns = random_.between(3, 10) * kSecond_ns;
    cluster.same_name_after_ns = 3 * kSecond_ns;
    const allocator::ObjectiveKind objectives[] = {
        allocator::ObjectiveKind::efficiency, allocator::ObjectiveKind::max_min, allocator::ObjectiveKind::throughput,
        allocator::ObjectiveKind::equal_shares, allocator::ObjectiveKind::utilisation};
    cluster.objective.kind = objectives[random_.below(std::size(objectives))];
    const auto policies = scheduler::policy_names();
    controller_options_.policy = policies[random_.below(policies.size())];
    if (!options_.policy.empty()) controller_options_.policy = options_.policy;
    controller_options_.gpus.gpu_types = {"gpu"};
    const bool lends = random_.below(2) == 0;
    for (std::uint64_t n = 0; n < node_count; ++n) {
        const auto gpus = static_cast<std::uint32_t>(random_.between(2, 4));
        controller_options_.gpus.nodes.push_back({"node-" + std::to_string(n), 0, gpus, true});
        nodes_.push_back(
            std::make_unique<SimulatedNode>(NodeOptions{.number = static_cast<int>(n),
                                                        .directory = options_.directory + "/node-" + std::to_string(n),
                                                        .memory_bytes = random_.below(3) * 300'000,
                                                        .disk_bytes = random_.below(3) * 500'000,
                                                        .burst_bytes = burst_bytes_,
                                                        .floor_bytes_per_second = cluster.floor_bytes_per_second,
                                                        .gpus = gpus,
                                                        .lends = lends},
                                            *around_));
    }
    machines_ = std::make_unique<Machines>(*around_, programs_);
    controller_ = std::make_unique<Controller>(controller_options_, *around_, *machines_);
}

std::unique_ptr<Program> SimulatedWorld::make_program(const std::string& name) {
    auto program = std::make_unique<Program>();
    program->name = name;
    program->uid = 1000 + static_cast<std::uint32_t>(random_.below(2));
    program->dataset = any_dataset();
    program->epochs = 1 + random_.below(12);
    program->batch = static_cast<std::uint32_t>(1 + random_.below(6));
    program->window = static_cast<std::uint32_t>(1 + random_.below(16));
    program->step_ns = random_.between(30, 300) * kMillisecond_ns;
    program->seed = random_.next();
    return program;
}

// --- jobs

void SimulatedWorld::submit() {
    const std::string name = "job" + std::to_string(++submitted_);
    auto program = make_program(name);
    std::uint32_t gpus = 0;
    for (const scheduler::GpuNode& node : controller_options_.gpus.nodes) gpus += node.gpus;
    scheduler::Submission job{.name = name, .command = {"train"}, .directory = "/"};
    job.gpus = static_cast<std::uint32_t>(1 + random_.below(std::min(gpus, 4u)));
    job.dataset = datasets_[program->dataset]->name();
    job.epochs = static_cast<double>(program->epochs);
    if (random_.below(2) == 0) job.ideal_by_type[""] = 1e5;
    if (random_.below(4) == 0) job.priority = 1;
    programs_[name] = std::move(program);
    controller_->submit(job, [this, name](JobId id) {
        acknowledged_[id] = name;
        events_.trace(50, [&] { return "job " + std::to_string(id) + " (" + name + ") is acknowledged"; });
    });
}

void SimulatedWorld::start_bare() {
    if (bare_.size() >= 2) return;
    const int number = ++last_bare_;
    Bare& bare = bare_[number];
    bare.program = make_program("bare" + std::to_string(number));
    bare.program->epochs = 1'000'000'000;
    std::vector<int> nodes;
    for (std::uint64_t i = 0; i <= random_.below(2); ++i) nodes.push_back(any_node().number());
    bare.training = std::make_unique<Training>(*around_, *bare.program, nodes, [](int) {});
}

void SimulatedWorld::send(const std::string& method, std::vector<std::string> path, const std::string& body) {
    HttpRequest request{.method = method, .path = std::move(path)};
    request.body = body;
    controller_->ask(request, [this, method](const HttpResponse& response) {
        events_.trace(51, [&] { return method + " is answered with " + std::to_string(response.status); });
    });
}

// --- faults

void SimulatedWorld::choose_faults() {
    const auto node_restart = [this](SimulatedNode& node) { events_.after(seconds(15), [&node] { node.start(); }); };
    const auto controller_restart = [this] { events_.after(seconds(12), [this] { controller_->start(); }); };
    const auto for_a_while = [this](std::int64_t most, const auto& begin, const auto& end) {
        begin();
        events_.after(seconds(most), end);
    };
    std::vector<Kind> all{
        {"kill a node",
         [this, node_restart] {
             SimulatedNode& node = any_node();
             node.kill();
             node_restart(node);
         }},
        {"cut the power of a node",
         [this, node_restart] {
             SimulatedNode& node = any_node();
             node.cut_power();
             machines_->lose_machine(node.number());
             for (auto& [number, bare] : bare_) {
                 if (bare.training != nullptr && bare.training->runs_on(node.number())) bare.training.reset();
             }
             node_restart(node);
         }},
        {"freeze a node", [this] { any_node().freeze(seconds(15)); }},
        {"move a node's clock", [this] { any_node().jump_clock(seconds(20)); }},
        {"cut a node from the allocator",
         [this, for_a_while] {
             const int node = any_node().number();
             for_a_while(
                 20, [&] { network_.cut(node, kAllocatorMachine); },
                 [this, node] { network_.heal(node, kAllocatorMachine); });
         }},
        {"cut two nodes",
         [this, for_a_while] {
             const int a = any_node().number();
             const int b = any_node().number();
             for_a_while(20, [&] { network_.cut(a, b); }, [this, a, b] { network_.heal(a, b); });
         }},
        {"kill the allocator",
         [this, controller_restart] {
             controller_->kill();
             controller_restart();
         }},
        {"cut the power of the allocator",
         [this, controller_restart] {
             controller_->cut_power();
             controller_restart();
         }},
        {"freeze the allocator", [this] { controller_->freeze(seconds(12)); }},
        {"fail saving",
         [this, for_a_while] {
             for_a_while(
                 10, [this] { controller_->faults.save_error = 0.5; }, [this] { controller_->faults.save_error = 0; });
         }},
        {"fail the remote",
         [this, for_a_while] {
             for_a_while(
                 10, [this] { remote_faults_.error = 0.3 + 0.7 * random_.real(); },
                 [this] { remote_faults_.error = 0; });
         }},
        {"slow the remote",
         [this, for_a_while] {
             for_a_while(15, [this] { remote_faults_.slow = 0.5; }, [this] { remote_faults_.slow = 0; });
         }},
        {"fail a disk",
         [this, for_a_while] {
             SimulatedNode& node = any_node();
             const double part = 0.02 + 0.3 * random_.real();
             for_a_while(
                 15,
                 [&] {
                     node.set_disk_faults({.read_error = random_.below(2) == 0 ? part : 0,
                                           .write_error = random_.below(2) == 0 ? part : 0,
                                           .short_count = random_.below(2) == 0 ? part : 0,
                                           .torn_write = random_.below(2) == 0 ? part : 0,
                                           .flipped_bit = random_.below(2) == 0 ? part : 0,
                                           .no_space = random_.below(3) == 0 ? part : 0,
                                           .delay_max_ns = random_.between(1, 200) * kMillisecond_ns});
                 },
                 [&node] { node.end_disk_faults(); });
         }},
        {"crash a job",
         [this] {
             machines_->crash_one();
             for (auto& [number, bare] : bare_) {
                 if (random_.below(2) == 0) bare.training.reset();
             }
         }},
        {"lose messages",
         [this, for_a_while] {
             for_a_while(
                 20,
                 [this] {
                     network_faults_ = {.delay_max_ns = random_.between(1, 300) * kMillisecond_ns,
                                        .lost = 0.3 * random_.real(),
                                        .doubled = 0.3 * random_.real(),
                                        .late = 0.3 * random_.real(),
                                        .wrong_block = network_faults_.wrong_block};
                 },
                 [this] {
                     const double wrong = network_faults_.wrong_block;
                     network_faults_ = {.wrong_block = wrong};
                 });
         }},
    };
    // A few kinds, each of them often.
    for (Kind& kind : all) {
        if (random_.below(3) == 0) faults_.push_back(std::move(kind));
    }
    if (random_.below(2) == 0) network_faults_.wrong_block = 0.05;
    if (random_.below(2) == 0) remote_faults_.wrong_bytes = 0.02;
    if (random_.below(2) == 0) remote_faults_.retried = 0.05;
    fault_every_s_ = 1 + 15 * random_.real();
    changes_ = {
        {"submit a job", [this] { submit(); }},
        {"submit a job", [this] { submit(); }},
        {"start a job", [this] { start_bare(); }},
        {"end a job",
         [this] {
             if (!bare_.empty() && random_.below(2) == 0) bare_.erase(bare_.begin());
         }},
        {"cancel a job",
         [this] {
             if (acknowledged_.empty() || random_.below(3) != 0) return;
             const auto at =
                 std::next(acknowledged_.begin(), static_cast<std::ptrdiff_t>(random_.below(acknowledged_.size())));
             const JobId id = at->first;
             cancelled_.insert(id);
             controller_->cancel(id, [] {});
         }},
        {"change a job's rate",
         [this] {
             for (auto& [name, program] : programs_) {
                 if (random_.below(3) == 0) program->step_ns = random_.between(30, 500) * kMillisecond_ns;
             }
         }},
        {"change a dataset",
         [this] {
             if (random_.below(3) == 0) datasets_[any_dataset()]->change(random_);
         }},
        {"pin a quota",
         [this] {
             const std::string name = datasets_[any_dataset()]->name();
             const bool pins = random_.below(2) == 0;
             send(pins ? "PUT" : "DELETE", {"v1", "datasets", name, "pin"},
                  pins ? "{\"bytes\": " + std::to_string(random_.below(1'500'000)) + "}" : "");
         }},
        {"hold a quota",
         [this] {
             const bool holds = random_.below(2) == 0;
             any_node().hold_quota(any_dataset(),
                                   holds ? std::optional(cache::Quota{.memory_bytes = random_.below(3) * 100'000,
                                                                      .disk_bytes = random_.below(3) * 200'000})
                                         : std::nullopt);
         }},
        {"set the remote's bandwidth",
         [this] {
             if (random_.below(3) != 0) return;
             const auto rate = static_cast<std::uint64_t>(bandwidth_ * (0.5 + random_.real()));
             const bool sets = random_.below(2) == 0;
             send(sets ? "PUT" : "DELETE", {"v1", "remote"},
                  sets ? "{\"bytes_per_second\": " + std::to_string(rate) + "}" : "");
         }},
    };
}

void SimulatedWorld::next_fault() {
    if (healed_ || faults_.empty()) return;
    const Kind& fault = faults_[random_.below(faults_.size())];
    events_.trace(60, [&] { return "fault: " + fault.name; });
    ++fault_count_;
    fault.happen();
    events_.after(seconds(std::max<std::int64_t>(1, static_cast<std::int64_t>(2 * fault_every_s_))),
                  [this] { next_fault(); });
}

void SimulatedWorld::next_change() {
    if (healed_) return;
    const Kind& change = changes_[random_.below(changes_.size())];
    events_.trace(61, [&] { return "change: " + change.name; });
    change.happen();
    events_.after(seconds(10), [this] { next_change(); });
}

void SimulatedWorld::heal() {
    events_.trace(62, [] { return "no more faults"; });
    healed_ = true;
    network_.heal_all();
    network_faults_ = {};
    remote_faults_ = {};
    controller_->faults = {};
    for (const auto& node : nodes_) {
        node->end_disk_faults();
        node->start();
    }
    controller_->start();
    for (auto& [number, bare] : bare_) {
        if (bare.training != nullptr) continue;
        bare.training =
            std::make_unique<Training>(*around_, *bare.program, std::vector{any_node().number()}, [](int) {});
    }
}

// --- invariants

void SimulatedWorld::sample() {
    // A bandwidth that was lowered holds in leases for a while.
    if (controller_->up() && (bandwidths_.empty() || bandwidths_.back().second != controller_->bandwidth()))
        bandwidths_.emplace_back(events_.now_ns(), controller_->bandwidth());
    const std::int64_t lease_ns = 2 * controller_options_.cluster.lease_ns + 20 * kSecond_ns;
    while (bandwidths_.size() > 1 && bandwidths_[1].first < events_.now_ns() - lease_ns) bandwidths_.pop_front();
    double most = bandwidth_;
    if (!bandwidths_.empty()) most = 0;
    for (const auto& [since_ns, rate] : bandwidths_) most = std::max(most, rate);
    // Until the first lease of all, a node takes the floor of its config, of which the allocator cannot know.
    std::uint64_t uncounted = 0;
    double rates = 0;
    std::uint64_t jobs = 0;
    for (const auto& node : nodes_) {
        if (!node->up()) continue;
        rates += node->rates_in_force();
        jobs += node->jobs_with_sessions();
        if (!node->was_ever_leased()) ++uncounted;
    }
    const double floors = static_cast<double>(uncounted) * controller_options_.cluster.floor_bytes_per_second;
    if (rates > (most + floors) * 1.0001 + static_cast<double>(jobs)) {
        for (const auto& node : nodes_) {
            events_.trace(63, [&] {
                return node->name() + (node->up() ? " has " + std::to_string(node->rates_in_force()) : " is down");
            });
        }
        return events_.fail("the rates of all nodes sum up to " + std::to_string(static_cast<std::uint64_t>(rates)) +
                            " bytes/s, above " + std::to_string(static_cast<std::uint64_t>(most + floors)));
    }
    counted_->sample(most + floors);
    events_.after(kSample_ns, [this] { sample(); });
}

void SimulatedWorld::check_converged() {
    if (!controller_->answers()) return events_.fail("the allocator does not answer");
    for (const auto& node : nodes_) {
        if (!node->answers()) return events_.fail(node->name() + " does not answer");
        if (!node->status().connected)
            return events_.fail(node->name() + " is not connected: " + node->status().problem);
        if (!node->lease_in_force()) return events_.fail(node->name() + " has no lease");
    }
    const auto check = [this](const Program& program) {
        if (program.runs_now == 0 || events_.now_ns() - program.progressed_ns < kStuck_ns) return;
        events_.fail("job " + program.name + " makes no progress");
    };
    for (const auto& [number, bare] : bare_) check(*bare.program);
    for (const Program* program : machines_->running_programs()) check(*program);
    events_.after(5 * kSecond_ns, [this] {
        if (events_.now_ns() < kEnd_ns) check_converged();
    });
}

void SimulatedWorld::check_ends() {
    for (const auto& [id, name] : acknowledged_) {
        const auto phase = controller_->recorded_phase(id);
        const std::string job = "job " + std::to_string(id) + " (" + name + ")";
        if (!phase) return events_.fail(job + " was acknowledged, but is not on record");
        if (!scheduler::has_ended(*phase))
            return events_.fail(job + " has not ended; it is " + std::string(scheduler::name(*phase)));
        const bool done = programs_.at(name)->done;
        if (*phase == Phase::succeeded && !done) return events_.fail(job + " succeeded without having run to its end");
        if (*phase == Phase::cancelled && !cancelled_.contains(id))
            return events_.fail(job + " is cancelled, but nobody asked for that");
        const std::string reason = controller_->end_reason(id);
        if (*phase == Phase::failed && !reason.starts_with("lost 5 times"))
            return events_.fail(job + " failed: " + reason);
    }
}

// --- the run

WorldResult SimulatedWorld::run() {
    for (const auto& node : nodes_) events_.after(seconds(2), [&node] { node->start(); });
    events_.after(seconds(2), [this] { controller_->start(); });
    events_.after(kSample_ns, [this] { sample(); });
    if (options_.faults) {
        choose_faults();
        events_.after(3 * kSecond_ns, [this] { next_change(); });
        events_.after(5 * kSecond_ns, [this] { next_fault(); });
    }
    for (int i = 0; i < 2; ++i) events_.after((3 + i) * kSecond_ns, [this] { submit(); });
    events_.after(4 * kSecond_ns, [this] { start_bare(); });
    events_.run_until(kFaultsEnd_ns);
    heal();
    // Consequences of a fault may still end, for example a node starts.
    events_.run_until(kConvergedBy_ns);
    if (!events_.failed()) check_converged();
    events_.run_until(kEnd_ns);
    for (auto& [name, program] : programs_) program->ends_soon = true;
    while (!events_.failed() && events_.now_ns() < kAllEndedBy_ns && controller_->unfinished() > 0)
        events_.run_until(events_.now_ns() + 5 * kSecond_ns);
    events_.run_until(events_.now_ns() + 2 * kSecond_ns);
    if (!events_.failed()) check_ends();
    WorldResult result{.failure = events_.failure(),
                       .trace_hash = events_.hash(),
                       .simulated_s = static_cast<double>(events_.now_ns()) * 1e-9,
                       .events = events_.count(),
                       .faults = fault_count_,
                       .remote_bytes = counted_->taken_bytes()};
    for (const auto& node : nodes_) result.blocks_recovered += node->blocks_recovered();
    result.reads = reads_;
    for (const auto& [name, program] : programs_) result.steps += program->steps;
    for (const auto& [number, bare] : bare_) result.steps += bare.program->steps;
    for (const auto& [id, name] : acknowledged_)
        result.jobs_ended += scheduler::has_ended(controller_->recorded_phase(id).value_or(Phase::waiting)) ? 1 : 0;
    return result;
}

}  // namespace larder::campaign
