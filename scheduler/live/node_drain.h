#pragma once

// A node that an operator has drained: it takes no further job, and the jobs that run there go on. It stays drained
// over restarts of its machine, of its cluster manager's agent and of this process, until an operator takes it back.

#include <functional>
#include <map>
#include <string>

namespace larder::scheduler {

struct NodeDrain {
    std::string by;      // who drained it, for people
    double since_s = 0;  // Unix time

    bool operator==(const NodeDrain&) const = default;
};

using NodeDrains = std::map<std::string, NodeDrain, std::less<>>;  // by the node's name

}  // namespace larder::scheduler
