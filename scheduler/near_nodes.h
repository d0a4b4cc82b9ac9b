#pragma once

// Which nodes hold a dataset's blocks, those that hold most first: what placement near data goes by
// (DecideInput::near), in the daemon as in the simulator. Of a dataset that lies on very many nodes, those that hold
// most: it is hardly nearer to one of the others than to any.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace larder::scheduler {

class NearNodes {
public:
    static constexpr std::size_t kNodesMax = 64;  // of a dataset

    // Datasets by index; what was added before is forgotten.
    void begin(std::size_t datasets) {
        held_.resize(datasets);
        for (auto& held : held_) held.clear();
        nodes_.assign(datasets, {});
    }
    // Before finish().
    void add(std::uint32_t dataset, std::uint32_t node, double bytes);
    void finish();
    void finish(std::uint32_t dataset);  // this one alone: for who looks up few of many
    // None of a dataset that nobody knows.
    std::span<const std::uint32_t> of(std::uint32_t dataset) const {
        return dataset < nodes_.size() ? std::span<const std::uint32_t>(nodes_[dataset])
                                       : std::span<const std::uint32_t>();
    }

private:
    using Held = std::pair<double, std::uint32_t>;  // bytes, node
    static bool holds_more(const Held& a, const Held& b) {
        return a.first != b.first ? a.first > b.first : a.second < b.second;
    }

    std::vector<std::vector<Held>> held_;  // by dataset; heaps with the least in front, once they are full
    std::vector<std::vector<std::uint32_t>> nodes_;
};

}  // namespace larder::scheduler
