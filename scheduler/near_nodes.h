#pragma once

// Which nodes hold a dataset's blocks, those that hold most first: what placement near data goes by
// (DecideInput::near), in the daemon as in the simulator.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace larder::scheduler {

class NearNodes {
public:
    // Datasets by index; what was added before is forgotten.
    void begin(std::size_t datasets) { held_.assign(datasets, {}); }
    void add(std::uint32_t dataset, std::uint32_t node, double bytes) {
        if (bytes > 0) held_[dataset].emplace_back(bytes, node);
    }
    void finish();
    // None of a dataset that nobody knows.
    std::span<const std::uint32_t> of(std::uint32_t dataset) const {
        return dataset < nodes_.size() ? std::span<const std::uint32_t>(nodes_[dataset])
                                       : std::span<const std::uint32_t>();
    }

private:
    std::vector<std::vector<std::pair<double, std::uint32_t>>> held_;
    std::vector<std::vector<std::uint32_t>> nodes_;
};

}  // namespace larder::scheduler
