#include "scheduler/near_nodes.h"

#include <algorithm>

namespace larder::scheduler {

void NearNodes::add(std::uint32_t dataset, std::uint32_t node, double bytes) {
    if (!(bytes > 0)) return;
    auto& held = held_[dataset];
    const Held one(bytes, node);
    if (held.size() < kNodesMax) {
        held.push_back(one);
        if (held.size() == kNodesMax) std::ranges::make_heap(held, holds_more);
    } else if (holds_more(one, held.front())) {
        std::ranges::pop_heap(held, holds_more);
        held.back() = one;
        std::ranges::push_heap(held, holds_more);
    }
}

void NearNodes::finish() {
    for (std::uint32_t dataset = 0; dataset < held_.size(); ++dataset) finish(dataset);
}

void NearNodes::finish(std::uint32_t dataset) {
    auto& held = held_[dataset];
    std::ranges::sort(held, holds_more);
    nodes_[dataset].clear();
    nodes_[dataset].reserve(held.size());
    for (const auto& [bytes, node] : held) nodes_[dataset].push_back(node);
}

}  // namespace larder::scheduler
