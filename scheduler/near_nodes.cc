#include "scheduler/near_nodes.h"

#include <algorithm>

namespace larder::scheduler {

void NearNodes::add(std::uint32_t dataset, std::uint32_t node, double bytes) {
    if (!(bytes > 0)) return;
    auto& holders = holders_[dataset];
    const Holder one(bytes, node);
    if (holders.size() < kNodesMax) {
        holders.push_back(one);
        if (holders.size() == kNodesMax) std::ranges::make_heap(holders, holds_more);
    } else if (holds_more(one, holders.front())) {
        std::ranges::pop_heap(holders, holds_more);
        holders.back() = one;
        std::ranges::push_heap(holders, holds_more);
    }
}

void NearNodes::finish() {
    for (std::uint32_t dataset = 0; dataset < holders_.size(); ++dataset) finish(dataset);
}

void NearNodes::finish(std::uint32_t dataset) {
    auto& holders = holders_[dataset];
    std::ranges::sort(holders, holds_more);
    nodes_[dataset].clear();
    nodes_[dataset].reserve(holders.size());
    for (const auto& [bytes, node] : holders) nodes_[dataset].push_back(node);
}

}  // namespace larder::scheduler
