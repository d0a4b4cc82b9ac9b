#pragma once

// The nodes of the joint bench as real programs: a larder-allocator and a larderd for each node, every one with a
// directory, sockets and, where root allows, a network of its own, over one remote.

#include <boost/json/object.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/cluster/remote_counter.h"
#include "bench/daemon_process.h"
#include "bench/joint_network.h"
#include "bench/joint_scenario.h"
#include "bench/server_process.h"
#include "bench/work_directory.h"

namespace larder::bench {

class JointCluster {
public:
    // `files`: the remote, by dataset. All is kept under `directory`, which must not exist yet; names in it are short,
    // for the path of a socket may have 107 bytes.
    static Result<JointCluster> start(const JointScenario& scenario, const std::vector<FileSet>& files,
                                      const std::string& directory, const std::string& objective);

    // Of what kind the nodes' networks are: "namespaces" or "loopback".
    const char* network() const { return network_.name(); }
    std::uint32_t nodes() const { return static_cast<std::uint32_t>(nodes_.size()); }
    DaemonProcess& node(std::uint32_t index) { return nodes_[index]; }
    static std::string node_name(std::uint32_t index) { return "node-" + std::to_string(index); }

    // Declares a job's f*, so that its first plan is made from more than a guess; what is measured counts once it is.
    Result<void> register_job(const JointJob& job);
    // Fixes a dataset's quota over all nodes.
    Result<void> pin(const std::string& dataset, std::uint64_t bytes);
    // Kills the node's daemon, removes all it had cached, and starts it again.
    Result<void> lose_cache(std::uint32_t index);

    // The plan in force, as GET /v1/plan has it.
    Result<boost::json::object> plan() const { return allocator_.call("GET", "/v1/plan"); }
    // How long ago each node reported last; waits until all have.
    Result<std::vector<double>> report_ages_s() const;
    // What all jobs on all nodes have taken, since the cluster was started.
    RemoteCounter& remote() { return *remote_; }

private:
    JointCluster(const JointScenario& scenario, const std::vector<FileSet>& files, std::string directory,
                 JointNetwork network, ServerProcess allocator)
        : scenario_(scenario),
          files_(files),
          directory_(std::move(directory)),
          network_(std::move(network)),
          allocator_(std::move(allocator)) {}

    std::string directory_of(std::uint32_t node) const { return directory_ + "/n" + std::to_string(node); }
    Result<DaemonProcess> start_node(std::uint32_t index) const;
    Result<void> add_datasets(DaemonProcess& daemon, std::uint32_t node) const;

    JointScenario scenario_;
    std::vector<FileSet> files_;
    std::string directory_;
    JointNetwork network_;
    ServerProcess allocator_;
    std::vector<DaemonProcess> nodes_;
    std::unique_ptr<RemoteCounter> remote_;
};

}  // namespace larder::bench
