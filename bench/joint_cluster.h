#pragma once

// The nodes of the joint bench as real programs: a larder-allocator and a larderd for each node, every one with a
// directory and sockets of its own, over one remote.

#include <boost/json/object.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/daemon_process.h"
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

    DaemonProcess& node(std::uint32_t index) { return nodes_[index]; }

    // The plan in force, as GET /v1/plan has it.
    Result<boost::json::object> plan() const { return allocator_.call("GET", "/v1/plan"); }
    // By all jobs on all nodes, since the cluster was started. Any thread.
    Result<std::uint64_t> remote_read_bytes() const;

private:
    JointCluster(const JointScenario& scenario, const std::vector<FileSet>& files, std::string directory,
                 ServerProcess allocator)
        : scenario_(scenario), files_(files), directory_(std::move(directory)), allocator_(std::move(allocator)) {}

    std::string directory_of(std::uint32_t node) const { return directory_ + "/n" + std::to_string(node); }
    Result<DaemonProcess> start_node(std::uint32_t index) const;
    Result<void> add_datasets(DaemonProcess& daemon, std::uint32_t node) const;

    JointScenario scenario_;
    std::vector<FileSet> files_;
    std::string directory_;
    ServerProcess allocator_;
    std::vector<DaemonProcess> nodes_;
};

}  // namespace larder::bench
