#include "scheduler/near_nodes.h"

#include <algorithm>

namespace larder::scheduler {

void NearNodes::finish() {
    nodes_.assign(held_.size(), {});
    for (std::size_t dataset = 0; dataset < held_.size(); ++dataset) {
        auto& held = held_[dataset];
        std::ranges::sort(held, [](const auto& a, const auto& b) {
            return a.first != b.first ? a.first > b.first : a.second < b.second;
        });
        for (const auto& [bytes, node] : held) nodes_[dataset].push_back(node);
    }
}

}  // namespace larder::scheduler
