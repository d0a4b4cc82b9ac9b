#pragma once

// Random clusters from a seed, for the allocator's tests and the optimum bench.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "allocator/rate_limits.h"
#include "allocator/state.h"

namespace larder::test {

// Plans by linear programs take a thousand times as long as others, so few cases have them.
inline allocator::Effort effort_of(std::uint64_t seed) {
    return seed / 8 % 128 == 0 ? allocator::Effort::thorough : allocator::Effort::usual;
}

struct RandomStateOptions {
    std::uint32_t jobs_max = 12;
    std::uint32_t datasets_max = 6;
    std::uint32_t nodes_max = 5;
    bool operator_limits = true;  // floors, caps
    bool node_limits = true;      // disks and networks that may bind
    bool epochs = true;           // jobs in their last epoch, jobs in the middle of one, caches that are filling
    bool waiting = false;         // jobs without GPUs
    bool peer_groups = true;      // several peer groups, in half of the clusters
    bool turns = false;           // jobs that take turns, in half of the clusters
};

class RandomState {
public:
    RandomState(std::uint64_t seed, RandomStateOptions options) : random_(seed), options_(options) {}

    allocator::ClusterState make() {
        using namespace allocator;
        ClusterState state;
        const std::uint32_t jobs = 1 + below(options_.jobs_max);
        const std::uint32_t datasets = 1 + below(options_.datasets_max);
        const std::uint32_t nodes = 1 + below(options_.nodes_max);
        state.remote_bytes_per_second = spread(1e8, 1e10);
        const std::uint32_t groups = options_.peer_groups && chance(0.5) ? 1 + below(nodes) : 1;
        for (std::uint32_t n = 0; n < nodes; ++n) {
            ClusterNode node{.name = name("node", n), .gpus = 1000, .peer_group = groups > 1 ? 7 * below(groups) : 0};
            node.memory_bytes = chance(0.5) ? whole(1e8, 1e11) : 0;
            node.disk_bytes = chance(0.8) ? whole(1e9, 1e12) : 0;
            if (options_.node_limits && chance(0.5)) node.nic_bytes_per_second = spread(1e8, 1e10);
            if (options_.node_limits && chance(0.5)) node.disk_read_bytes_per_second = spread(1e8, 1e10);
            state.nodes.push_back(node);
        }
        for (std::uint32_t i = 0; i < datasets; ++i) {
            ClusterDataset dataset{.name = name("dataset", i), .size_bytes = whole(1e9, 1e12)};
            if (options_.epochs && chance(0.5)) {
                for (std::uint32_t n = 0; n < nodes; ++n) {
                    if (!chance(0.5)) continue;
                    NodeCache cached{.node = n};
                    cached.disk_bytes = std::min(state.nodes[n].disk_bytes, dataset.size_bytes) / datasets / nodes;
                    dataset.cached.push_back(cached);
                }
            }
            if (options_.operator_limits && chance(0.2)) {
                dataset.quota_cap_bytes = whole(1e8, 1e11);
                if (chance(0.5))
                    dataset.quota_floor_bytes =
                        std::min(dataset.quota_cap_bytes, total_cache_bytes(state) / datasets / 2);
            }
            if (dataset.quota_floor_bytes > 0) {
                for (std::uint32_t n = i % 2; n < nodes; n += 3) dataset.expected_on.push_back(n);
            }
            state.datasets.push_back(dataset);
        }
        for (std::uint32_t j = 0; j < jobs; ++j) state.jobs.push_back(make_job(state, j, jobs));
        if (options_.turns && chance(0.5)) take_turns(state);
        return state;
    }

private:
    allocator::ClusterJob make_job(const allocator::ClusterState& state, std::uint32_t index, std::uint32_t jobs) {
        using namespace allocator;
        ClusterJob job{.name = name("job", index), .dataset = below(static_cast<std::uint32_t>(state.datasets.size()))};
        job.ideal_bytes_per_second = spread(1e7, 5e9);
        job.weight = chance(0.3) ? spread(0.25, 4) : 1;
        const std::uint64_t size = state.datasets[job.dataset].size_bytes;
        if (options_.epochs) {
            if (chance(0.2)) job.remaining_epochs = spread(0.1, 1);
            if (chance(0.5)) {
                job.unread_bytes = whole(1, static_cast<double>(size));
                job.unread_cached_bytes = static_cast<std::uint64_t>(static_cast<double>(job.unread_bytes) * uniform());
            }
        }
        if (options_.operator_limits && chance(0.1)) {
            job.bandwidth_cap_bytes_per_second = spread(1e6, 1e9);
            if (chance(0.5)) {
                job.bandwidth_floor_bytes_per_second =
                    std::min(job.bandwidth_cap_bytes_per_second, state.remote_bytes_per_second / jobs / 2);
            }
        }
        const auto nodes = static_cast<std::uint32_t>(state.nodes.size());
        if (options_.waiting && chance(0.3)) {
            job.gpus = 1 + below(4);
            return job;
        }
        const std::uint32_t first = below(nodes);
        const std::uint32_t count = 1 + (chance(0.3) ? below(nodes) : 0);
        for (std::uint32_t k = 0; k < count; ++k) {
            job.placement.push_back({.node = (first + k) % nodes, .gpus = 1});
            ++job.gpus;
        }
        return job;
    }

    void take_turns(allocator::ClusterState& state) {
        for (allocator::ClusterJob& job : state.jobs) {
            if (chance(0.3)) continue;
            job.time_share = spread(0.01, 1);
            if (chance(0.5)) job.last_placement = std::exchange(job.placement, {});
        }
    }

    static std::uint64_t total_cache_bytes(const allocator::ClusterState& state) {
        std::uint64_t bytes = 0;
        for (const auto& node : state.nodes) bytes += node.memory_bytes + node.disk_bytes;
        return bytes;
    }
    // The random part makes the order of names differ from the order of the list.
    std::string name(const char* kind, std::uint32_t index) {
        return std::string(kind) + "-" + std::to_string(random_() % 1000) + "-" + std::to_string(index);
    }
    double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
    bool chance(double part) { return uniform() < part; }
    std::uint32_t below(std::uint32_t end) { return static_cast<std::uint32_t>(random_() % end); }
    double spread(double low, double high) { return low * std::exp(uniform() * std::log(high / low)); }
    std::uint64_t whole(double low, double high) { return static_cast<std::uint64_t>(spread(low, high)); }

    std::mt19937_64 random_;
    RandomStateOptions options_;
};

}  // namespace larder::test
