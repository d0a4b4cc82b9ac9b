#include "tests/cluster/private_network.h"

#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <thread>

#include "base/assert.h"

extern char** environ;

namespace larder::test {
namespace {

constexpr const char* kOwnNamespace = "/proc/thread-self/ns/net";

std::string joined(const std::vector<std::string>& arguments) {
    std::string text;
    for (const std::string& word : arguments) text += (text.empty() ? "" : " ") + word;
    return text;
}

// Runs ip(8) in the calling thread's namespace.
Result<void> run_ip(const std::vector<std::string>& arguments) {
    const std::string command = "ip " + joined(arguments);
    std::vector<char*> argv{const_cast<char*>("ip")};
    argv.reserve(arguments.size() + 2);
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    pid_t pid = -1;
    const int failed = ::posix_spawnp(&pid, "ip", nullptr, nullptr, argv.data(), environ);
    if (failed != 0) return fail_errno(failed, command + " (package iproute2)");
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return fail(ErrorCode::unsupported, command + " failed");
    return {};
}

Result<void> run_ip_each(const NetworkNamespace& network, const std::vector<std::vector<std::string>>& commands) {
    const NetworkNamespace::Inside inside(network);
    for (const auto& command : commands) {
        if (auto done = run_ip(command); !done) return done;
    }
    return {};
}

std::string cable_name(std::size_t index) {
    return "node" + std::to_string(index);
}

}  // namespace

Result<NetworkNamespace> NetworkNamespace::make() {
    // A thread of its own makes the namespace, so that the calling thread stays in its own.
    std::optional<Result<FileDescriptor>> made;
    std::thread([&made] {
        if (::unshare(CLONE_NEWNET) != 0) {
            made = fail_errno(errno, "make a network namespace");
        } else {
            made = open_file(kOwnNamespace, O_RDONLY);
        }
    }).join();
    if (!*made) return std::unexpected(made->error());
    return NetworkNamespace(std::move(**made));
}

std::string NetworkNamespace::path() const {
    return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file_.get());
}

NetworkNamespace::Inside::Inside(const NetworkNamespace& network) {
    auto own = open_file(kOwnNamespace, O_RDONLY);
    LARDER_ASSERT(own.has_value());
    outside_ = std::move(*own);
    LARDER_ASSERT(::setns(network.file_.get(), CLONE_NEWNET) == 0);
}

NetworkNamespace::Inside::~Inside() {
    LARDER_ASSERT(::setns(outside_.get(), CLONE_NEWNET) == 0);
}

Result<PrivateNetwork> PrivateNetwork::make(std::uint32_t nodes) {
    LARDER_ASSERT(nodes <= kNodesMax);
    auto hub = NetworkNamespace::make();
    if (!hub) return std::unexpected(hub.error());
    PrivateNetwork network(std::move(*hub));
    auto done = run_ip_each(network.hub_, {{"link", "set", "lo", "up"},
                                           {"link", "add", "hub", "type", "bridge"},
                                           {"address", "add", hub_address() + "/24", "dev", "hub"},
                                           {"link", "set", "hub", "up"}});
    for (std::uint32_t i = 0; done && i < nodes; ++i) {
        auto node = NetworkNamespace::make();
        done = node ? network.add_node(std::move(*node)) : std::unexpected(node.error());
    }
    if (!done) return std::unexpected(done.error());
    return network;
}

Result<void> PrivateNetwork::add_node(NetworkNamespace node) {
    const std::string name = cable_name(nodes_.size());
    const std::string address = node_address(static_cast<std::uint32_t>(nodes_.size())) + "/24";
    auto plugged =
        run_ip_each(hub_, {{"link", "add", name, "type", "veth", "peer", "name", "uplink", "netns", node.path()},
                           {"link", "set", name, "master", "hub", "up"}});
    if (!plugged) return plugged;
    nodes_.push_back(std::move(node));
    return run_ip_each(
        nodes_.back(),
        {{"link", "set", "lo", "up"}, {"address", "add", address, "dev", "uplink"}, {"link", "set", "uplink", "up"}});
}

Result<void> PrivateNetwork::set_cable(std::uint32_t index, const char* state) const {
    return run_ip_each(hub_, {{"link", "set", cable_name(index), state}});
}

}  // namespace larder::test
