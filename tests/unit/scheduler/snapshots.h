#pragma once

// Builds snapshots for decisions, one line per job.

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/decide.h"
#include "scheduler/placement/free_pool.h"

namespace larder::scheduler::tests {

// splitmix64 (Vigna). The numbers are the same on every machine.
class TestRandom {
public:
    explicit TestRandom(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() {
        state_ += 0x9e3779b97f4a7c15;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    std::uint32_t below(std::uint32_t count) { return static_cast<std::uint32_t>(next() % count); }
    // Returns a number in [0, 1).
    double part() { return static_cast<double>(next() >> 11) * 0x1p-53; }

private:
    std::uint64_t state_;
};

// The rate of a job of World::add() on one GPU.
inline constexpr double kGpuBytesPerSecond = 1e8;

// Returns the work that a job of World::add() does on `gpus` GPUs in `seconds`.
inline double work_bytes(double gpus, double seconds) {
    return kGpuBytesPerSecond * gpus * seconds;
}

// Owns what a Snapshot refers to. There is one GPU type "a" unless more are named, and nodes have 8 GPUs.
class World {
public:
    explicit World(std::uint32_t nodes, std::vector<std::string> types = {"a"}) {
        cluster.gpu_types = types;
        for (std::uint32_t n = 0; n < nodes; ++n) {
            for (std::uint32_t type = 0; type < types.size(); ++type) {
                cluster.nodes.push_back({.name = types[type] + std::to_string(n), .gpu_type = type, .gpus = 8});
            }
        }
        for (const std::string& type : types) gpu_types.push_back({.name = type, .gpus = nodes * 8});
        pool = std::make_unique<FreePool>(cluster);
        tenants.push_back({.name = "one"});
    }

    // Adds a rigid job of 100 MB/s per GPU on every type, without a dataset. The caller may change the returned spec
    // before the first decision.
    JobSpec& add(std::uint32_t gpus, double total_bytes = 1e12) {
        JobSpec& spec = specs.emplace_back();
        spec.name = "job" + std::to_string(specs.size() - 1);
        spec.submit_s = now_s;
        spec.gpus = spec.gpus_min = spec.gpus_max = gpus;
        spec.total_bytes = total_bytes;
        spec.ideal_bytes_per_second.assign(gpu_types.size(), kGpuBytesPerSecond * gpus);
        JobState& state = states.emplace_back();
        state.spec = &spec;
        state.remaining_bytes = total_bytes;
        state.waiting_since_s = now_s;
        state.ran_s_by_type.resize(gpu_types.size());
        jobs.push_back(&state);
        present.push_back(&state);
        ids.push_back(states.size());
        return spec;
    }

    Snapshot snapshot() const {
        return {.now_s = now_s,
                .gpu_types = gpu_types,
                .jobs = jobs,
                .tenants = tenants,
                .datasets = datasets,
                .storage = storage,
                .pair_rates = measured,
                .storage_aware = storage_aware};
    }

    // Makes a decision and applies it to the states.
    Result<Actions> step(Policy& policy) {
        const Snapshot taken = snapshot();
        auto actions = decide(policy, *pool, {.snapshot = taken, .ids = ids, .cluster = &cluster}, &waits);
        if (!actions) return actions;
        for (const std::uint32_t j : actions->stops) {
            JobState& state = *present[j];
            state.running = false;
            state.waiting_since_s = now_s;
            state.packed_with = nullptr;
            ++state.preemptions;
        }
        for (const Start& start : actions->starts) {
            JobState& state = *present[start.job];
            if (state.first_started_s != kNever) ready_s[&state] = now_s + state.spec->restart_s;
            note_start(state, start, now_s);
            state.packed_with = start.packed_with ? jobs[*start.packed_with] : nullptr;
        }
        note_promises(*actions, now_s, [&](std::uint32_t at) -> JobState& { return *present[at]; });
        return actions;
    }

    // Advances time. Running jobs attain service and progress at their expected rates once their restart is over.
    void pass(double seconds) {
        const Snapshot taken = snapshot();
        for (JobState& state : states) {
            if (!state.running) continue;
            const double rate = expected_rate(taken, state);
            add_run(state, now_s, now_s + seconds);
            const double lost_s = std::min(seconds, restart_left_s(state));
            state.remaining_bytes = std::max(0.0, state.remaining_bytes - rate * (seconds - lost_s));
        }
        now_s += seconds;
    }

    // Returns when the first running job ends.
    double next_end_s() const {
        const Snapshot taken = snapshot();
        double first = kNever;
        for (const JobState* const job : jobs) {
            if (job->running) first = std::min(first, now_s + restart_left_s(*job) + expected_remaining_s(taken, *job));
        }
        return first;
    }

    // Returns how long the job's restart still takes.
    double restart_left_s(const JobState& job) const {
        const auto found = ready_s.find(&job);
        return found == ready_s.end() ? 0 : std::max(0.0, found->second - now_s);
    }

    // Ends the jobs that have no work left. Their guests wait again.
    void end_finished() {
        for (std::uint32_t j = 0; j < states.size(); ++j) {
            const bool is_present = std::ranges::find(jobs, &states[j]) != jobs.end();
            if (!is_present || states[j].remaining_bytes > 1e-9 * states[j].spec->total_bytes) continue;
            for (JobState& guest : states) {
                if (!guest.running || guest.packed_with != &states[j]) continue;
                guest.running = false;
                guest.packed_with = nullptr;
                guest.waiting_since_s = now_s;
            }
            end(j);
        }
    }

    // Removes a job from the snapshot. Indices of later jobs shift in the snapshot, but not in `states`.
    void end(std::uint32_t state) {
        const auto at = static_cast<std::ptrdiff_t>(std::ranges::find(jobs, &states[state]) - jobs.begin());
        if (states[state].running && states[state].packed_with == nullptr) pool->release(ids[at]);
        states[state].running = false;
        jobs.erase(jobs.begin() + at);
        present.erase(present.begin() + at);
        ids.erase(ids.begin() + at);
    }

    // Returns the running jobs, as indices in `states`.
    std::vector<std::uint32_t> running() const {
        std::vector<std::uint32_t> found;
        for (std::uint32_t j = 0; j < states.size(); ++j) {
            if (states[j].running) found.push_back(j);
        }
        return found;
    }

    double now_s = 0;
    GpuCluster cluster;
    std::vector<GpuTypeState> gpu_types;
    std::deque<JobSpec> specs;
    std::deque<JobState> states;
    std::vector<const JobState*> jobs;
    std::vector<JobState*> present;  // the same jobs as in `jobs`, but mutable
    std::vector<JobId> ids;
    std::vector<Tenant> tenants;
    std::vector<DatasetState> datasets;
    Storage storage;
    const PairRates* measured = nullptr;
    bool storage_aware = true;
    std::unique_ptr<Placer> pool;
    std::vector<WaitsFor> waits;
    std::map<const JobState*, double> ready_s;  // when the restart of each restarted job is over
};

}  // namespace larder::scheduler::tests
