#pragma once

// The allocator as a running program: the cluster and its API on a Unix socket, on the calling thread. What it knows is
// in memory; after a restart, nodes' reports tell it again within a period.

#include <functional>
#include <string>

#include "allocator/cluster.h"
#include "base/error.h"

namespace larder::allocator {

struct ServiceOptions {
    std::string socket;
    unsigned socket_mode = 0660;
    ClusterOptions cluster;
};

// Serves until SIGTERM or SIGINT. `started` is called when requests are taken. Logging is the caller's to start.
Result<void> serve(const ServiceOptions& options, const std::function<void()>& started = {});

}  // namespace larder::allocator
