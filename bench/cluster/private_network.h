#pragma once

// A network of its own for processes of this machine: a hub and nodes, each in a network namespace, each node with a
// cable (a veth pair) to a bridge at the hub. Nothing of it has a name outside: the namespaces are held by descriptors
// and by what runs in them, so the kernel removes all of it with the last of these, however they ended, and two such
// networks never meet. Needs root and iproute2. One thread.

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace larder::bench {

class NetworkNamespace {
public:
    // permission_denied: not for us.
    static Result<NetworkNamespace> make();

    // The calling thread is in the namespace while this lives, and with it the sockets it opens and the threads and
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

    // Where other programs find it, while this lives.
    std::string path() const;

private:
    explicit NetworkNamespace(FileDescriptor file) : file_(std::move(file)) {}
    FileDescriptor file_;
};

class PrivateNetwork {
public:
    static constexpr std::uint32_t kNodesMax = 250;

    // An error says why there cannot be one here.
    static Result<PrivateNetwork> make(std::uint32_t nodes);

    const NetworkNamespace& hub() const { return hub_; }
    const NetworkNamespace& node(std::uint32_t index) const { return nodes_[index]; }
    // At which all nodes reach the hub.
    static std::string hub_address() { return "10.77.0.1"; }

    // Pulls the node's cable at the hub, and plugs it in again.
    Result<void> cut_off(std::uint32_t index) const { return set_cable(index, "down"); }
    Result<void> join_again(std::uint32_t index) const { return set_cable(index, "up"); }

private:
    explicit PrivateNetwork(NetworkNamespace hub) : hub_(std::move(hub)) {}
    Result<void> add_node(NetworkNamespace node);
    Result<void> set_cable(std::uint32_t index, const char* state) const;

    NetworkNamespace hub_;
    std::vector<NetworkNamespace> nodes_;
};

}  // namespace larder::bench
