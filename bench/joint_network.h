#pragma once

// The network between the joint bench's nodes and their allocator: TCP, with a token for each node. Each node has its
// own network namespace if root allows it, else all use this machine's loopback.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "tests/cluster/private_network.h"

namespace larder::bench {

class JointNetwork {
public:
    // Makes the network and writes tokens into `directory`, which must exist.
    static Result<JointNetwork> make(std::uint32_t nodes, const std::string& directory);

    // Returns the hub's namespace; null: the bench's own.
    const test::NetworkNamespace* hub() const { return network_ ? &network_->hub() : nullptr; }
    const test::NetworkNamespace* node(std::uint32_t index) const {
        return network_ ? &network_->node(index) : nullptr;
    }

    // Returns the IP:PORT at which the node listens for its peers. The token file names this endpoint beside the node's
    // token, so the allocator accepts it.
    const std::string& peers_address(std::uint32_t index) const { return peers_addresses_[index]; }

    // The arguments that make an allocator listen at the hub.
    std::vector<std::string> allocator_arguments() const;
    // The allocator's endpoint for nodes. Call once the allocator serves.
    Result<std::string> endpoint() const;
    std::string token_file(std::uint32_t index) const { return directory_ + "/t" + std::to_string(index); }
    // The file of the secret that the nodes share as peers.
    std::string peers_token_file() const { return directory_ + "/peers"; }

    const char* name() const { return network_ ? "namespaces" : "loopback"; }

private:
    explicit JointNetwork(std::string directory) : directory_(std::move(directory)) {}
    std::string tokens_file() const { return directory_ + "/tokens"; }
    std::string log_file() const { return directory_ + "/allocator.log"; }

    std::string directory_;
    std::optional<test::PrivateNetwork> network_;
    std::vector<std::string> peers_addresses_;    // of each node
    std::vector<FileDescriptor> reserved_ports_;  // on loopback
};

}  // namespace larder::bench
