#include "bench/joint_network.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "base/assert.h"
#include "base/file.h"

namespace larder::bench {
namespace {

constexpr const char* kPort = "7600";
constexpr const char* kPeersPort = "7474";

std::string random_token() {
    std::array<unsigned char, 20> bytes;
    LARDER_ASSERT(::getentropy(bytes.data(), bytes.size()) == 0);
    std::string token;
    for (const unsigned char byte : bytes) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", byte);
        token += digits;
    }
    return token;
}

// Returns a socket that is bound to a free port of loopback. While it is open, the kernel gives the port to nobody
// else, but a server may listen there: both sockets have SO_REUSEADDR.
Result<FileDescriptor> reserve_port() {
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (socket.get() < 0 || ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        return fail_errno(errno, "reserve a port of loopback");
    }
    return socket;
}

std::string address_of(const FileDescriptor& socket) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    LARDER_ASSERT(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

}  // namespace

Result<JointNetwork> JointNetwork::make(std::uint32_t nodes, const std::string& directory) {
    JointNetwork network(directory);
    auto separate = test::PrivateNetwork::make(nodes);
    if (separate) {
        network.network_ = std::move(*separate);
    } else {
        std::fprintf(stderr, "nodes share this machine's loopback: %s\n", separate.error().message.c_str());
    }
    std::string tokens;
    for (std::uint32_t i = 0; i < nodes; ++i) {
        if (network.network_) {
            network.peers_addresses_.push_back(test::PrivateNetwork::node_address(i) + ":" + kPeersPort);
        } else {
            auto reserved = reserve_port();
            if (!reserved) return std::unexpected(reserved.error());
            network.peers_addresses_.push_back(address_of(*reserved));
            network.reserved_ports_.push_back(std::move(*reserved));
        }
        const std::string token = random_token();
        tokens += "node node-" + std::to_string(i) + " " + token + " http://" + network.peers_addresses_[i] + "\n";
        if (auto written = replace_file(network.token_file(i), token + "\n", 0600); !written) {
            return std::unexpected(written.error());
        }
    }
    if (auto written = replace_file(network.tokens_file(), tokens, 0600); !written) {
        return std::unexpected(written.error());
    }
    if (auto written = replace_file(network.peers_token_file(), random_token() + "\n", 0600); !written) {
        return std::unexpected(written.error());
    }
    return network;
}

std::vector<std::string> JointNetwork::allocator_arguments() const {
    if (network_) {
        return {"--listen",        test::PrivateNetwork::hub_address() + ":" + kPort,
                "--plain-tcp",     "true",
                "--access.tokens", tokens_file(),
                "--log.level",     "error"};
    }
    // The kernel chooses a free port; the log says which.
    return {"--listen", "127.0.0.1:0", "--access.tokens", tokens_file(), "--log.file", log_file()};
}

Result<std::string> JointNetwork::endpoint() const {
    if (network_) return "http://" + test::PrivateNetwork::hub_address() + ":" + kPort;
    constexpr std::string_view port_prefix = " port=";
    // The log is written asynchronously.
    for (int i = 0; i < 1000; ++i) {
        const auto log = read_file(log_file());
        const std::size_t at = log ? log->find(port_prefix) : std::string::npos;
        if (at != std::string::npos && log->find('\n', at) != std::string::npos) {
            const std::string rest = log->substr(at + port_prefix.size());
            return "http://127.0.0.1:" + rest.substr(0, rest.find_first_not_of("0123456789"));
        }
        ::usleep(5'000);
    }
    return fail(ErrorCode::timeout, log_file() + " does not say where the allocator listens");
}

}  // namespace larder::bench
