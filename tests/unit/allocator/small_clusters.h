#pragma once

// Random clusters that are small enough to try every placement of a job. Some jobs run, one waits, caches are partly
// filled, and networks, disks and the remote may each bind.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "allocator/state.h"

namespace larder::test {

class SmallClusters {
public:
    explicit SmallClusters(std::uint64_t seed) : random_(seed) {}

    // The last job is the waiting one. It fits with GPUs to spare.
    allocator::ClusterState make() {
        using namespace allocator;
        ClusterState state{.remote_bytes_per_second = spread(1e8, 1e10)};
        const std::uint32_t nodes = 2 + below(3);
        const std::uint32_t datasets = 1 + below(3);
        for (std::uint32_t n = 0; n < nodes; ++n) {
            state.nodes.push_back({.name = "node-" + std::to_string(n),
                                   .gpus = 1 + below(4),
                                   .memory_bytes = chance(0.5) ? whole(1e9, 1e11) : 0,
                                   .disk_bytes = chance(0.9) ? whole(1e10, 1e12) : 0,
                                   .disk_read_bytes_per_second = spread(2e8, 1e10),
                                   .nic_bytes_per_second = spread(1e8, 1e10)});
        }
        for (std::uint32_t i = 0; i < datasets; ++i) {
            ClusterDataset dataset{.name = "dataset-" + std::to_string(i), .size_bytes = whole(1e10, 1e12)};
            for (std::uint32_t n = 0; n < nodes; ++n) {
                if (!chance(0.5)) continue;
                const std::uint64_t share = dataset.size_bytes / nodes;
                const double filled = uniform();
                dataset.cached.push_back(
                    {.node = n,
                     .memory_bytes = part(std::min(state.nodes[n].memory_bytes / datasets, share / 2), filled),
                     .disk_bytes = part(std::min(state.nodes[n].disk_bytes / datasets, share / 2), filled)});
            }
            state.datasets.push_back(dataset);
        }
        std::vector<std::uint32_t> free;
        for (const ClusterNode& node : state.nodes) free.push_back(node.gpus);
        const std::uint32_t running = 1 + below(3);
        for (std::uint32_t j = 0; j < running; ++j) {
            ClusterJob job = make_job(j, datasets);
            const std::uint32_t first = below(nodes);
            const std::uint32_t spread_over = chance(0.3) ? 2 : 1;
            for (std::uint32_t k = 0; k < spread_over; ++k) {
                const std::uint32_t n = (first + k) % nodes;
                const std::uint32_t gpus = std::min(free[n], 1 + below(2));
                // Two GPUs stay free, so that the waiting job has a choice.
                if (gpus == 0 || gpus + 2 > sum(free)) continue;
                free[n] -= gpus;
                job.gpus += gpus;
                job.placement.push_back({.node = n, .gpus = gpus});
            }
            if (job.gpus > 0) state.jobs.push_back(job);
        }
        ClusterJob waiting = make_job(running, datasets);
        waiting.gpus = 1 + below(std::min(sum(free) - 1, 8u));
        state.jobs.push_back(waiting);
        return state;
    }

private:
    allocator::ClusterJob make_job(std::uint32_t index, std::uint32_t datasets) {
        return {.name = "job-" + std::to_string(index),
                .dataset = below(datasets),
                .ideal_bytes_per_second = spread(1e8, 1e10),
                .weight = chance(0.3) ? spread(0.25, 4) : 1};
    }

    static std::uint32_t sum(const std::vector<std::uint32_t>& counts) {
        std::uint32_t total = 0;
        for (const std::uint32_t count : counts) total += count;
        return total;
    }
    static std::uint64_t part(std::uint64_t bytes, double filled) {
        return static_cast<std::uint64_t>(static_cast<double>(bytes) * filled);
    }
    double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
    bool chance(double probability) { return uniform() < probability; }
    std::uint32_t below(std::uint32_t end) { return static_cast<std::uint32_t>(random_() % end); }
    double spread(double low, double high) { return low * std::exp(uniform() * std::log(high / low)); }
    std::uint64_t whole(double low, double high) { return static_cast<std::uint64_t>(spread(low, high)); }

    std::mt19937_64 random_;
};

inline std::vector<std::uint32_t> free_gpus(const allocator::ClusterState& state) {
    std::vector<std::uint32_t> free;
    for (const allocator::ClusterNode& node : state.nodes) free.push_back(node.gpus);
    for (const allocator::ClusterJob& job : state.jobs) {
        for (const allocator::GpuShare& share : job.placement) free[share.node] -= share.gpus;
    }
    return free;
}

// Calls `visit` with each way to take `gpus` of the free GPUs.
inline void for_each_placement(const std::vector<std::uint32_t>& free, std::uint32_t gpus,
                               const std::function<void(const allocator::GpuShares&)>& visit) {
    allocator::GpuShares placement;
    const std::function<void(std::uint32_t, std::uint32_t)> place_from = [&](std::uint32_t node,
                                                                             std::uint32_t missing) {
        if (missing == 0) return visit(placement);
        if (node == free.size()) return;
        place_from(node + 1, missing);
        for (std::uint32_t taken = 1; taken <= std::min(missing, free[node]); ++taken) {
            placement.push_back({.node = node, .gpus = taken});
            place_from(node + 1, missing - taken);
            placement.pop_back();
        }
    };
    place_from(0, gpus);
}

}  // namespace larder::test
