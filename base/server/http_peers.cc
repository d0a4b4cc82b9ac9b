#include "base/server/http_peers.h"

#include <algorithm>
#include <cmath>

namespace larder {

HttpPeers::HttpPeers(const HttpPeerLimits& limits) : limits_(limits) {
    limits_.request_burst = std::max(1.0, limits_.request_burst);
}

bool HttpPeers::open(const std::string& peer) {
    if (limits_.connections_max == 0) return true;
    const auto found = peers_.find(peer);
    if (found == peers_.end()) {
        peers_.emplace(peer, Peer{.connections = 1, .tokens = limits_.request_burst});
        return true;
    }
    if (found->second.connections >= limits_.connections_max) return false;
    found->second.connections++;
    return true;
}

void HttpPeers::close(const std::string& peer) {
    const auto found = peers_.find(peer);
    if (found == peers_.end() || found->second.connections == 0) return;
    // The request count outlives the connection; else a peer could reconnect to get a full bucket.
    if (--found->second.connections == 0 && limits_.requests_per_second_max == 0) peers_.erase(found);
}

double HttpPeers::tokens_at(const Peer& peer, std::int64_t now_ns) const {
    const double elapsed_s = static_cast<double>(now_ns - peer.filled_ns) / 1e9;
    return std::min(limits_.request_burst, peer.tokens + elapsed_s * limits_.requests_per_second_max);
}

std::int64_t HttpPeers::take_request(const std::string& peer, std::int64_t now_ns) {
    if (limits_.requests_per_second_max == 0) return 0;
    if (peers_.size() >= next_cleanup_size_) forget_full_buckets(now_ns);
    const auto [found, added] = peers_.try_emplace(peer, Peer{.tokens = limits_.request_burst});
    Peer& known = found->second;
    known.tokens = tokens_at(known, now_ns);
    known.filled_ns = now_ns;
    if (known.tokens >= 1) {
        known.tokens -= 1;
        return 0;
    }
    return std::max<std::int64_t>(1, std::llround(std::ceil((1 - known.tokens) / limits_.requests_per_second_max)));
}

// Called each time the table has doubled, so that the cost is spread over the requests that grew the table.
void HttpPeers::forget_full_buckets(std::int64_t now_ns) {
    std::erase_if(peers_, [&](const auto& entry) {
        return entry.second.connections == 0 && tokens_at(entry.second, now_ns) >= limits_.request_burst;
    });
    next_cleanup_size_ = std::max<std::size_t>(64, 2 * peers_.size());
}

}  // namespace larder
