#include "cache/peers/peers.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/server/http_client.h"
#include "base/server/http_target.h"
#include "base/server/logging.h"

namespace larder::cache {
namespace {

bool is_any_address(const std::string& host) {
    return host == "0.0.0.0" || host == "::" || host == "[::]";
}

std::string endpoint_of(const PeersOptions& options, std::uint16_t port) {
    if (!options.endpoint.empty()) return options.endpoint;
    const auto listen = parse_host_port(options.listen);
    std::string host = listen ? listen->host : "";
    if (host.empty() || is_any_address(host)) {
        std::array<char, 256> name{};
        host = ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
    }
    if (host.contains(':') && !host.starts_with('[')) host = "[" + host + "]";
    return (options.certificate_file.empty() ? "http://" : "https://") + host + ":" + std::to_string(port);
}

// Whoever can read the token can read all that is cached.
Result<void> check_hidden(const std::string& token_file) {
    struct stat status{};
    if (::stat(token_file.c_str(), &status) != 0) return fail_errno(errno, "peers: token file " + token_file);
    if ((status.st_mode & 0027) == 0) return {};
    return fail(ErrorCode::permission_denied, "peers: token file " + token_file +
                                                  " can be read or changed by others than its owner: chmod 0600 " +
                                                  token_file);
}

}  // namespace

HttpTransfersOptions peer_transfers_options(const std::string& ca_file) {
    return {.settings = {.connect_timeout_ms = 1'000, .stall_timeout_s = 2, .request_timeout_s = 5, .ca_file = ca_file},
            .retry_for_ns = 1,
            .connections_max = 16};
}

Result<std::unique_ptr<Peers>> Peers::start(const PeersOptions& options, HttpTransfers& transfers) {
    std::unique_ptr<Peers> peers(new Peers(options));
    const auto client = http_client_options({.token_file = options.token_file});
    if (!client) return std::unexpected(client.error().within("peers"));
    if (client->bearer_token.empty() && (!options.listen.empty() || !options.others.empty())) {
        return fail(ErrorCode::invalid_argument, "peers: token_file is missing: peers share a secret");
    }
    if (!options.token_file.empty()) {
        if (auto hidden = check_hidden(options.token_file); !hidden) return std::unexpected(hidden.error());
    }
    if (!options.listen.empty()) {
        auto server = PeerServer::start({.listen = options.listen,
                                         .token = client->bearer_token,
                                         .certificate_file = options.certificate_file,
                                         .key_file = options.key_file,
                                         .needs_digests = options.witnesses > 0},
                                        peers->datasets_);
        if (!server) return std::unexpected(server.error());
        peers->server_ = std::move(*server);
        peers->endpoint_ = endpoint_of(options, peers->server_->port());
        log_info("lending cached blocks to other nodes", {{"endpoint", peers->endpoint_}});
    }
    peers->directory_ =
        std::make_unique<PeerDirectory>(peers->datasets_, transfers, client->bearer_token, options.witnesses);
    peers->set_others({});
    return peers;
}

Peers::~Peers() = default;

void Peers::set_others(std::vector<PeerAddress> addresses) {
    for (const std::string& other : options_.others) {
        addresses.push_back({.node = {}, .endpoint = other, .is_witness = options_.others_are_witnesses});
    }
    std::erase_if(addresses, [&](const PeerAddress& address) { return address.endpoint == endpoint_; });
    directory_->set_peers(std::move(addresses));
}

}  // namespace larder::cache
