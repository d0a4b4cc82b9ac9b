#pragma once

// Lists the nodes that hold a dataset's blocks, the largest holders first. The daemon and the simulator place jobs near
// their data by these lists (DecideInput::near). For a dataset on very many nodes only the largest holders are kept,
// because a job on a smaller holder is hardly nearer to the data than a job on a node without any.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace larder::scheduler {

class NearNodes {
public:
    static constexpr std::size_t kNodesMax = 64;  // per dataset

    // Starts over with this many datasets, numbered from 0.
    void begin(std::size_t datasets) {
        holders_.resize(datasets);
        for (auto& holders : holders_) holders.clear();
        nodes_.assign(datasets, {});
    }
    // Call before finish().
    void add(std::uint32_t dataset, std::uint32_t node, double bytes);
    void finish();
    void finish(std::uint32_t dataset);  // finishes one dataset, for callers that look up few of many
    // Returns the nodes of a dataset; none if the dataset is unknown.
    std::span<const std::uint32_t> holders_of(std::uint32_t dataset) const {
        return dataset < nodes_.size() ? std::span<const std::uint32_t>(nodes_[dataset])
                                       : std::span<const std::uint32_t>();
    }

private:
    using Holder = std::pair<double, std::uint32_t>;  // bytes, node
    static bool holds_more(const Holder& a, const Holder& b) {
        return a.first != b.first ? a.first > b.first : a.second < b.second;
    }

    std::vector<std::vector<Holder>> holders_;  // by dataset; a full one is a heap, the least in front
    std::vector<std::vector<std::uint32_t>> nodes_;
};

}  // namespace larder::scheduler
