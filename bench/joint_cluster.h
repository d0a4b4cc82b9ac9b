#pragma once

// The nodes of the joint bench as real programs over one remote: a larder-allocator, and a larderd for each node. Each
// has its own directory, sockets and, if root allows it, network.

#include <boost/json/object.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/daemon_process.h"
#include "bench/joint_network.h"
#include "bench/joint_scenario.h"
#include "bench/server_process.h"
#include "bench/work_directory.h"
#include "tests/cluster/remote_counter.h"

namespace larder::bench {

struct JointClusterOptions {
    std::string objective;
    bool pools_caches = false;   // all nodes are peers that trust each other, and each has every dataset
    bool declares_rates = true;  // each job's f* is declared; if not, the allocator measures it
};

class JointCluster {
public:
    // `files`: the remote's files by dataset. Everything is kept under `directory`, which must not exist yet. Names in
    // it are short, because a socket's path may have at most 107 bytes.
    static Result<JointCluster> start(const JointScenario& scenario, const std::vector<FileSet>& files,
                                      const std::string& directory, const JointClusterOptions& options);

    // The kind of the nodes' networks: "namespaces" or "loopback".
    const char* network() const { return network_.name(); }
    std::uint32_t nodes() const { return static_cast<std::uint32_t>(nodes_.size()); }
    DaemonProcess& node(std::uint32_t index) { return nodes_[index]; }
    static std::string node_name(std::uint32_t index) { return "node-" + std::to_string(index); }

    // Declares a job's f*, so that its first plan is based on more than a guess. A measured f* replaces it.
    Result<void> register_job(const JointJob& job);
    // Fixes a dataset's quota over all nodes.
    Result<void> pin(const std::string& dataset, std::uint64_t bytes);
    // Kills the node's daemon, removes its whole cache, and restarts it.
    Result<void> lose_cache(std::uint32_t index);

    // Returns the plan in force, from GET /v1/plan.
    Result<boost::json::object> plan() const { return allocator_.call("GET", "/v1/plan"); }
    // Returns each node's time since its last report; waits until all nodes have reported.
    Result<std::vector<double>> report_ages_s() const;
    // Counts the remote bytes of all jobs on all nodes since the cluster was started.
    test::RemoteCounter& remote() { return *remote_; }

private:
    JointCluster(const JointScenario& scenario, const std::vector<FileSet>& files, std::string directory,
                 bool pools_caches, JointNetwork network, ServerProcess allocator)
        : scenario_(scenario),
          files_(files),
          directory_(std::move(directory)),
          pools_caches_(pools_caches),
          network_(std::move(network)),
          allocator_(std::move(allocator)) {}

    std::string directory_of(std::uint32_t node) const { return directory_ + "/n" + std::to_string(node); }
    Result<DaemonProcess> start_node(std::uint32_t index) const;
    Result<void> add_datasets(DaemonProcess& daemon, std::uint32_t node) const;

    JointScenario scenario_;
    std::vector<FileSet> files_;
    std::string directory_;
    bool pools_caches_;
    JointNetwork network_;
    ServerProcess allocator_;
    std::vector<DaemonProcess> nodes_;
    std::unique_ptr<test::RemoteCounter> remote_;
};

}  // namespace larder::bench
