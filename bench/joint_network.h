#pragma once

// How the nodes of the joint bench reach their allocator: over TCP, each with a token of its own; each from a network
// namespace of its own where root allows that, else over this machine's loopback.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/cluster/private_network.h"

namespace larder::bench {

class JointNetwork {
public:
    // Writes tokens into `directory`, which must exist.
    static Result<JointNetwork> make(std::uint32_t nodes, const std::string& directory);

    // Null: where we are ourselves.
    const NetworkNamespace* hub() const { return network_ ? &network_->hub() : nullptr; }
    const NetworkNamespace* node(std::uint32_t index) const { return network_ ? &network_->node(index) : nullptr; }

    // What makes an allocator listen there.
    std::vector<std::string> allocator_arguments() const;
    // Where nodes find it. Once it serves.
    Result<std::string> endpoint() const;
    std::string token_file(std::uint32_t index) const { return directory_ + "/t" + std::to_string(index); }

    const char* name() const { return network_ ? "namespaces" : "loopback"; }

private:
    explicit JointNetwork(std::string directory) : directory_(std::move(directory)) {}
    std::string tokens_file() const { return directory_ + "/tokens"; }
    std::string log_file() const { return directory_ + "/allocator.log"; }

    std::string directory_;
    std::optional<PrivateNetwork> network_;
};

}  // namespace larder::bench
