#include "bench/joint_cluster.h"

#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

namespace larder::bench {
namespace {

std::string rate_text(double bytes_per_second) {
    return std::to_string(static_cast<std::uint64_t>(bytes_per_second)) + " B/s";
}

}  // namespace

Result<JointCluster> JointCluster::start(const JointScenario& scenario, const std::vector<FileSet>& files,
                                         const std::string& directory, const JointClusterOptions& options) {
    std::filesystem::create_directories(directory);
    const std::string socket = directory + "/a.sock";
    auto network = JointNetwork::make(scenario.nodes, directory);
    if (!network) return std::unexpected(network.error());
    std::vector<std::string> arguments = {"--socket",
                                          socket,
                                          "--remote-bandwidth",
                                          rate_text(scenario.remote_bytes_per_second),
                                          "--objective",
                                          options.objective,
                                          "--floor",
                                          rate_text(scenario.remote_bytes_per_second / 100),
                                          "--lease",
                                          std::to_string(kJointLease_s) + " s"};
    const std::vector<std::string> listening = network->allocator_arguments();
    arguments.insert(arguments.end(), listening.begin(), listening.end());
    auto allocator = ServerProcess::start("larder-allocator", arguments, socket, network->hub());
    if (!allocator) return std::unexpected(allocator.error());
    JointCluster cluster(scenario, files, directory, options.pools_caches, std::move(*network), std::move(*allocator));
    for (const JointJob& job : scenario.jobs) {
        if (!options.declares_rates) break;
        if (auto registered = cluster.register_job(job); !registered) return std::unexpected(registered.error());
    }
    std::vector<std::string> admin_sockets;
    for (std::uint32_t i = 0; i < scenario.nodes; ++i) {
        auto node = cluster.start_node(i);
        if (!node) return std::unexpected(node.error());
        if (auto added = cluster.add_datasets(*node, i); !added) return std::unexpected(added.error());
        admin_sockets.push_back(node->admin_socket());
        cluster.nodes_.push_back(std::move(*node));
    }
    cluster.remote_ = std::make_unique<test::RemoteCounter>(std::move(admin_sockets));
    return cluster;
}

Result<void> JointCluster::register_job(const JointJob& job) {
    const auto registered = allocator_.call(
        "POST", "/v1/jobs", {{"name", job.name}, {"ideal_bytes_per_second", job.ideal_bytes_per_second}});
    if (!registered) return std::unexpected(registered.error());
    return {};
}

Result<void> JointCluster::pin(const std::string& dataset, std::uint64_t bytes) {
    const auto pinned = allocator_.call("PUT", "/v1/datasets/" + dataset + "/pin", {{"bytes", bytes}});
    if (!pinned) return std::unexpected(pinned.error());
    return {};
}

Result<std::vector<double>> JointCluster::report_ages_s() const {
    constexpr auto kPatience = std::chrono::seconds(10);
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (true) {
        const auto listed = allocator_.call("GET", "/v1/nodes");
        if (!listed) return std::unexpected(listed.error());
        std::map<std::string, double> ages_s;
        for (const boost::json::value& node : listed->at("nodes").as_array()) {
            ages_s.emplace(node.at("name").as_string(), node.at("heard_ms_ago").to_number<double>() / 1000);
        }
        if (ages_s.size() == nodes_.size()) {
            std::vector<double> by_node;
            by_node.reserve(nodes_.size());
            for (std::uint32_t i = 0; i < nodes_.size(); ++i) by_node.push_back(ages_s.at(node_name(i)));
            return by_node;
        }
        if (std::chrono::steady_clock::now() > until) {
            return fail(ErrorCode::timeout, std::to_string(nodes_.size() - ages_s.size()) + " nodes do not report");
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
}

Result<void> JointCluster::lose_cache(std::uint32_t index) {
    nodes_[index].kill();
    std::error_code error;
    // The record of datasets stays: it is not cache.
    for (const char* part : {"/segments", "/index"}) {
        if (!error) std::filesystem::remove_all(directory_of(index) + part, error);
    }
    if (error) return fail_errno(error.value(), "remove the cache in " + directory_of(index));
    auto restarted = start_node(index);
    if (!restarted) return std::unexpected(restarted.error());
    nodes_[index] = std::move(*restarted);
    return {};
}

Result<DaemonProcess> JointCluster::start_node(std::uint32_t index) const {
    const auto allocator = network_.endpoint();
    if (!allocator) return std::unexpected(allocator.error());
    return DaemonProcess::start({.state_directory = directory_of(index),
                                 .memory_bytes = scenario_.node_cache_bytes,
                                 .disk_bytes = scenario_.node_disk_bytes,
                                 .allocator = *allocator,
                                 .node = node_name(index),
                                 .token_file = network_.token_file(index),
                                 .peers_token_file = pools_caches_ ? network_.peers_token_file() : "",
                                 .peers_listen = network_.peers_address(index),
                                 .network = network_.node(index)});
}

Result<void> JointCluster::add_datasets(DaemonProcess& daemon, std::uint32_t node) const {
    std::set<std::uint32_t> node_datasets;
    for (const JointJob& job : scenario_.jobs) {
        if (job.node == node || pools_caches_) node_datasets.insert(job.dataset);
    }
    for (const std::uint32_t i : node_datasets) {
        if (auto added = daemon.add_dataset({.name = scenario_.datasets[i].name, .directory = files_[i].directory});
            !added) {
            return added;
        }
    }
    return {};
}

}  // namespace larder::bench
