#include "scheduler/near_nodes.h"

#include <algorithm>

namespace larder::scheduler {

void NearNodes::finish() {
    for (std::uint32_t dataset = 0; dataset < held_.size(); ++dataset) finish(dataset);
}

void NearNodes::finish(std::uint32_t dataset) {
    auto& held = held_[dataset];
    const auto before = [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first > b.first : a.second < b.second;
    };
    if (held.size() > kNodesMax) {
        std::ranges::nth_element(held, held.begin() + kNodesMax, before);
        held.resize(kNodesMax);
    }
    std::ranges::sort(held, before);
    nodes_[dataset].clear();
    nodes_[dataset].reserve(held.size());
    for (const auto& [bytes, node] : held) nodes_[dataset].push_back(node);
}

}  // namespace larder::scheduler
