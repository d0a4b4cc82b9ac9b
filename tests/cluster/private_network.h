#pragma once

// A private network for processes of this machine: a hub and nodes, each in its own network namespace. A cable (a veth
// pair) connects each node to a bridge at the hub. The namespaces have no names: descriptors and running processes hold
// them, so the kernel removes the network when its last holder ends, even by a signal, and two networks never conflict.
// Needs root and iproute2. For one thread.

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace larder::test {

class NetworkNamespace {
public:
    // Makes a namespace; permission_denied if this user may not.
    static Result<NetworkNamespace> make();

    // Keeps the calling thread in the namespace while this object lives, with the sockets it opens and the threads and
    // processes it starts.
    class Inside {
    public:
        explicit Inside(const NetworkNamespace& network);
        ~Inside();
        Inside(const Inside&) = delete;
        Inside& operator=(const Inside&) = delete;

    private:
        FileDescriptor outside_;
    };

    // The path under which other programs find the namespace, while this object lives.
    std::string path() const;

private:
    explicit NetworkNamespace(FileDescriptor file) : file_(std::move(file)) {}
    FileDescriptor file_;
};

class PrivateNetwork {
public:
    static constexpr std::uint32_t kNodesMax = 250;

    // Makes the network. The error says why there cannot be one on this machine.
    static Result<PrivateNetwork> make(std::uint32_t nodes);

    const NetworkNamespace& hub() const { return hub_; }
    const NetworkNamespace& node(std::uint32_t index) const { return nodes_[index]; }
    // The address at which all nodes reach the hub.
    static std::string hub_address() { return "10.77.0.1"; }
    // The address at which the hub and the other nodes reach the node.
    static std::string node_address(std::uint32_t index) { return "10.77.0." + std::to_string(index + 2); }

    // Unplugs the node's cable at the hub, and plugs it in again.
    Result<void> cut_off(std::uint32_t index) const { return set_cable(index, "down"); }
    Result<void> join_again(std::uint32_t index) const { return set_cable(index, "up"); }

private:
    explicit PrivateNetwork(NetworkNamespace hub) : hub_(std::move(hub)) {}
    Result<void> add_node(NetworkNamespace node);
    Result<void> set_cable(std::uint32_t index, const char* state) const;

    NetworkNamespace hub_;
    std::vector<NetworkNamespace> nodes_;
};

}  // namespace larder::test
