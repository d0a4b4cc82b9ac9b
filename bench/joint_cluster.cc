#include "bench/joint_cluster.h"

#include <filesystem>
#include <set>

namespace larder::bench {
namespace {

std::string rate_text(double bytes_per_second) {
    return std::to_string(static_cast<std::uint64_t>(bytes_per_second)) + " B/s";
}

}  // namespace

Result<JointCluster> JointCluster::start(const JointScenario& scenario, const std::vector<FileSet>& files,
                                         const std::string& directory, const std::string& objective) {
    std::filesystem::create_directories(directory);
    const std::string socket = directory + "/a.sock";
    auto allocator =
        ServerProcess::start("larder-allocator",
                             {"--socket", socket, "--remote-bandwidth", rate_text(scenario.remote_bytes_per_second),
                              "--objective", objective, "--floor", rate_text(scenario.remote_bytes_per_second / 100),
                              "--lease", "5 s", "--log.level", "warn"},
                             socket);
    if (!allocator) return std::unexpected(allocator.error());
    // Declared, so that the first plan is made from more than guesses; what is measured counts once it is.
    for (const JointJob& job : scenario.jobs) {
        const auto registered = allocator->call(
            "POST", "/v1/jobs", {{"name", job.name}, {"ideal_bytes_per_second", job.ideal_bytes_per_second}});
        if (!registered) return std::unexpected(registered.error());
    }
    JointCluster cluster(scenario, files, directory, std::move(*allocator));
    for (std::uint32_t i = 0; i < scenario.nodes; ++i) {
        auto node = cluster.start_node(i);
        if (!node) return std::unexpected(node.error());
        if (auto added = cluster.add_datasets(*node, i); !added) return std::unexpected(added.error());
        cluster.nodes_.push_back(std::move(*node));
    }
    return cluster;
}

Result<DaemonProcess> JointCluster::start_node(std::uint32_t index) const {
    return DaemonProcess::start({.state_directory = directory_of(index),
                                 .memory_bytes = scenario_.node_cache_bytes,
                                 .disk_bytes = 0,
                                 .allocator = allocator_.socket(),
                                 .node = "node-" + std::to_string(index)});
}

Result<void> JointCluster::add_datasets(DaemonProcess& daemon, std::uint32_t node) const {
    std::set<std::uint32_t> wanted;
    for (const JointJob& job : scenario_.jobs) {
        if (job.node == node) wanted.insert(job.dataset);
    }
    for (const std::uint32_t i : wanted) {
        if (auto added = daemon.add_dataset({.name = scenario_.datasets[i].name, .directory = files_[i].directory});
            !added) {
            return added;
        }
    }
    return {};
}

Result<std::uint64_t> JointCluster::remote_read_bytes() const {
    std::uint64_t sum = 0;
    for (const DaemonProcess& node : nodes_) {
        const auto bytes = node.remote_read_bytes();
        if (!bytes) return bytes;
        sum += *bytes;
    }
    return sum;
}

}  // namespace larder::bench
