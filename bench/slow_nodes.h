#pragma once

#include <cstdint>

namespace larder::bench {

// A tenth of a bench cluster's nodes have a network and a disk that may be too slow.
constexpr bool is_slow_node(std::uint32_t node) {
    return node % 10 == 0;
}

}  // namespace larder::bench
