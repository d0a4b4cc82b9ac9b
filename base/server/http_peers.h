#pragma once

// Counts each peer's use of a server: its open connections, and its requests as a token bucket. A peer is an IP
// address or a user of a Unix socket, as text. Memory is bounded: a bucket that is full again is forgotten. Pure
// bookkeeping on one thread; the caller passes the time.

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

namespace larder {

struct HttpPeerLimits {
    std::size_t connections_max = 0;     // 0: no limit
    double requests_per_second_max = 0;  // 0: no limit
    double request_burst = 0;            // a value below 1 counts as 1
};

class HttpPeers {
public:
    explicit HttpPeers(const HttpPeerLimits& limits);

    // Counts a connection. Returns false if the peer has the maximum already. Each counted connection must be closed.
    bool open(const std::string& peer);
    void close(const std::string& peer);
    // Takes a token for a request. Returns 0, or the seconds until there is a token, rounded up.
    std::int64_t take_request(const std::string& peer, std::int64_t now_ns);

    std::size_t known_peers() const { return peers_.size(); }

private:
    struct Peer {
        std::size_t connections = 0;
        double tokens = 0;
        std::int64_t filled_ns = 0;
    };
    double tokens_at(const Peer& peer, std::int64_t now_ns) const;
    void forget_full_buckets(std::int64_t now_ns);

    HttpPeerLimits limits_;
    std::unordered_map<std::string, Peer> peers_;
    std::size_t next_cleanup_size_ = 64;
};

}  // namespace larder
