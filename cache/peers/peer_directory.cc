#include "cache/peers/peer_directory.h"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <limits>
#include <semaphore>
#include <set>

#include "base/hash.h"
#include "base/server/http_target.h"
#include "base/server/logging.h"
#include "base/server/percent_encoding.h"
#include "base/units.h"
#include "cache/remote/http_remote.h"

namespace larder::cache {
namespace {

std::string key_of(const PeerDataset& dataset) {
    return dataset.name + "/" + dataset.fingerprint;
}

std::string url_of(const std::string& endpoint, const PeerDataset& dataset, const char* what) {
    return endpoint + "/v1/peers/" + percent_encode(dataset.name) + "/" + dataset.fingerprint + "/" + what;
}

// "peer node-1 (10.0.0.1:7474)"
std::string name_of(const PeerStatus& peer) {
    const std::size_t scheme = peer.endpoint.find("://");
    const std::string place = scheme == std::string::npos ? peer.endpoint : peer.endpoint.substr(scheme + 3);
    return peer.node.empty() ? "peer " + place : "peer " + peer.node + " (" + place + ")";
}

std::string lower_case(std::string text) {
    if (!text.empty()) text.front() = static_cast<char>(std::tolower(static_cast<unsigned char>(text.front())));
    return text;
}

// Says why a request had no good answer, without its URL, which nobody chose.
std::string reason_of(const HttpGet& get) {
    switch (get.system_errno) {
        case ECONNREFUSED:
        case ETIMEDOUT:
        case ECONNRESET: return lower_case(std::strerror(get.system_errno));
        case EHOSTUNREACH: return "its host's name has no address";
        default: break;
    }
    std::string reason = get.message;
    if (reason.starts_with(get.url)) reason.erase(0, get.url.size());
    if (reason.starts_with(": ")) reason.erase(0, 2);
    return reason.substr(0, reason.find("; given up after"));
}

std::string problem_of(const PeerStatus& peer, const HttpGet& get) {
    if (get.outcome == HttpOutcome::ok) return name_of(peer) + " sends invalid answers";
    return name_of(peer) + (get.status == 0 ? " does not answer: " : " refuses: ") + reason_of(get);
}

}  // namespace

struct PeerDirectory::PeerQuery {
    HttpGet get;
    std::string endpoint;
    const PeerDataset* dataset = nullptr;
    bool is_about_digests = false;
    std::counting_semaphore<>* ended = nullptr;
};

PeerDirectory::PeerDirectory(const PeerDatasets& datasets, HttpTransfers& transfers, std::string token,
                             unsigned witnesses)
    : datasets_(datasets), transfers_(transfers), token_(std::move(token)), witnesses_(witnesses), thread_([this] {
          run();
      }) {
    pthread_setname_np(thread_.native_handle(), "larder-peer-dir");
}

PeerDirectory::~PeerDirectory() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void PeerDirectory::set_peers(std::vector<PeerAddress> addresses) {
    // The first of two addresses with one endpoint stays: the allocator's, which has a name.
    std::ranges::stable_sort(addresses, {}, &PeerAddress::endpoint);
    const auto same = std::ranges::unique(addresses, {}, &PeerAddress::endpoint);
    addresses.erase(same.begin(), same.end());
    if (addresses.size() > kPeersMax) addresses.resize(kPeersMax);
    const std::lock_guard lock(mutex_);
    if (addresses_ == addresses) return;
    addresses_ = std::move(addresses);
    changed_.notify_all();
}

std::vector<PeerStatus> PeerDirectory::status() const {
    const std::lock_guard lock(mutex_);
    return status_;
}

void PeerDirectory::run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        lock.unlock();
        ask_all();
        lock.lock();
        if (!stopping_) changed_.wait_for(lock, std::chrono::nanoseconds(kPeriod_ns));
    }
}

void PeerDirectory::take_addresses() {
    std::vector<PeerAddress> addresses;
    {
        const std::lock_guard lock(mutex_);
        addresses = addresses_;
    }
    std::erase_if(peers_, [&](const auto& peer) {
        return !std::ranges::binary_search(addresses, peer.first, {}, &PeerAddress::endpoint);
    });
    for (const PeerAddress& address : addresses) {
        Peer& peer = peers_[address.endpoint];
        peer.status.node = address.node;
        peer.is_witness = address.is_witness;
        if (peer.conduct != nullptr) continue;
        peer.status.endpoint = address.endpoint;
        auto& conduct = conducts_[address.endpoint];
        if (conduct == nullptr) conduct = std::make_shared<PeerConduct>();
        peer.conduct = conduct;
        if (numbers_.size() < std::numeric_limits<Witnesses::Node>::max()) {
            numbers_.try_emplace(address.endpoint, static_cast<Witnesses::Node>(numbers_.size() + 1));
        }
        const auto number = numbers_.find(address.endpoint);
        peer.number = number == numbers_.end() ? Witnesses::Node{0} : number->second;
        if (is_tcp_endpoint(address.endpoint)) {
            peer.origin = std::make_shared<const PeerOrigin>(address.endpoint, token_);
        } else {
            peer.status.problem = "peer " + (address.node.empty() ? "" : address.node + " ") + "has no endpoint: \"" +
                                  address.endpoint + "\" is not http://HOST:PORT";
            log_warn("a peer's cache cannot be read", {{"error", peer.status.problem}});
        }
    }
}

PeerDirectory::Claims& PeerDirectory::claims_of(const PeerDataset& dataset) {
    const auto known = claims_.find(key_of(dataset));
    if (known != claims_.end()) return known->second;
    return claims_
        .emplace(key_of(dataset),
                 Claims{.witnesses = Witnesses(dataset.manifest->block_count(), witnesses_), .states = {}})
        .first->second;
}

void PeerDirectory::ask_all() {
    take_addresses();
    const std::vector<PeerDataset> datasets = datasets_.all();
    const std::int64_t now_ns = clock_.now_ns();

    std::counting_semaphore<> ended(0);
    std::deque<PeerQuery> queries;
    const auto ask = [&](const std::string& endpoint, const Peer& peer, const PeerDataset& dataset, bool digests,
                         const HeldState* since) {
        PeerQuery& query = queries.emplace_back();
        query.endpoint = endpoint;
        query.dataset = &dataset;
        query.is_about_digests = digests;
        query.ended = &ended;
        query.get.context = &query;
        query.get.done = [](HttpGet& get) noexcept { static_cast<PeerQuery*>(get.context)->ended->release(); };
        query.get.origin = peer.origin.get();
        query.get.owner = this;
        query.get.ask = HttpRequestKind::text;
        query.get.url = url_of(endpoint, dataset, digests ? "digests" : "blocks");
        query.get.object_bytes = digests ? digests_bytes_max() : held_bytes_max(dataset.manifest->block_count());
        if (since != nullptr) query.get.url += "?since=" + since->text();
    };
    for (const PeerDataset& dataset : datasets) {
        for (const auto& [endpoint, peer] : peers_) {
            if (peer.origin == nullptr || peer.ask_from_ns > now_ns) continue;
            const auto last_answer = last_answers_.find({endpoint, key_of(dataset)});
            ask(endpoint, peer, dataset, false,
                last_answer == last_answers_.end() ? nullptr : &last_answer->second.state);
            if (witnesses_ == 0 || !peer.is_witness || peer.number == 0) continue;
            const auto& states = claims_of(dataset).states;
            const auto state = states.find(endpoint);
            ask(endpoint, peer, dataset, true, state == states.end() ? nullptr : &state->second);
        }
    }
    for (PeerQuery& query : queries) transfers_.submit(query.get);
    for (std::size_t i = 0; i < queries.size(); ++i) ended.acquire();

    std::set<std::string> changed;
    for (PeerQuery& query : queries) {
        Peer& peer = peers_.at(query.endpoint);
        const bool is_new = query.is_about_digests ? take_digests(query, peer) : take_answer(query, peer);
        if (is_new) changed.insert(key_of(*query.dataset));
    }
    std::vector<std::string> usable;  // endpoints of the peers that may be read from
    for (auto& [endpoint, peer] : peers_) {
        if (peer.status.answers) {
            peer.failures = 0;
        } else if (peer.ask_from_ns <= now_ns && !peer.status.problem.empty()) {
            // Each round waits for all answers, so a peer that lets this node wait is asked more seldom.
            peer.ask_from_ns = clock_.now_ns() + (kPeriod_ns << std::min(peer.failures++, kFailuresCounted));
        }
        if (peer.origin != nullptr && !peer.conduct->is_excluded(clock_.now_ns())) usable.push_back(endpoint);
    }
    std::set<std::string> current_keys;
    for (const PeerDataset& dataset : datasets) {
        const std::string key = key_of(dataset);
        current_keys.insert(key);
        hand_over(dataset, usable, changed.contains(key));
    }
    std::erase_if(last_handovers_, [&](const auto& item) { return !current_keys.contains(item.first); });
    std::erase_if(claims_, [&](const auto& item) { return !current_keys.contains(item.first); });
    std::erase_if(last_answers_, [&](const auto& item) {
        return !current_keys.contains(item.first.second) || !peers_.contains(item.first.first);
    });
    publish_status();
}

void PeerDirectory::publish_status() {
    for (auto& [endpoint, peer] : peers_) peer.status.held_blocks = peer.status.room_bytes = 0;
    for (const auto& [key, last_answer] : last_answers_) {
        peers_.at(key.first).status.room_bytes += last_answer.room_bytes;
        for (const std::uint8_t byte : last_answer.bits) {
            peers_.at(key.first).status.held_blocks += static_cast<unsigned>(std::popcount(byte));
        }
    }
    const std::int64_t now_ns = clock_.now_ns();
    std::vector<PeerStatus> status;
    status.reserve(peers_.size());
    for (const auto& [endpoint, peer] : peers_) {
        status.push_back(peer.status);
        if (!peer.conduct->is_excluded(now_ns)) continue;
        status.back().problem = name_of(peer.status) + " sent wrong bytes or digests (" +
                                std::to_string(peer.conduct->wrong_blocks()) + " times): it is not read from for " +
                                format_duration_ns(peer.conduct->excluded_until_ns() - now_ns);
    }
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
}

// True if the peer's answer differs from its last one.
bool PeerDirectory::take_answer(PeerQuery& query, Peer& peer) {
    const protocol::Manifest& manifest = *query.dataset->manifest;
    const Key key{query.endpoint, key_of(*query.dataset)};
    const bool missing = query.get.outcome == HttpOutcome::missing;
    std::optional<HeldAnswer> answer;
    if (query.get.outcome == HttpOutcome::ok) answer = decode_held(query.get.body, manifest.block_count());
    const bool answers = answer || missing;
    const std::string problem = answers ? "" : problem_of(peer.status, query.get);
    if (!answers && peer.status.problem != problem) {
        log_warn("a peer's cache cannot be read", {{"peer", query.endpoint}, {"error", problem}});
    } else if (answers && !peer.status.answers) {
        log_info("a peer's cache can be read", {{"peer", query.endpoint}});
    }
    peer.status.answers = answers;
    peer.status.problem = problem;
    if (!answer) return last_answers_.erase(key) > 0;
    LastAnswer& last_answer = last_answers_[key];
    const bool is_new = answer->bits.has_value() || answer->room_bytes != last_answer.room_bytes;
    last_answer.room_bytes = answer->room_bytes;
    if (answer->bits) {
        last_answer.state = answer->state;
        last_answer.bits = std::move(*answer->bits);
    }
    return is_new;
}

// Takes what a peer says of digests. True if it says something new. A peer of an earlier version has no such answer.
bool PeerDirectory::take_digests(PeerQuery& query, const Peer& peer) {
    if (query.get.outcome != HttpOutcome::ok) return false;
    const auto answer = decode_digests(query.get.body, query.dataset->manifest->block_count());
    if (!answer) return false;
    Claims& claims = claims_of(*query.dataset);
    claims.states[query.endpoint] = answer->state;
    for (const auto& [block, digest] : answer->blocks) claims.witnesses.note(peer.number, block, digest);
    return !answer->blocks.empty();
}

void PeerDirectory::hand_over(const PeerDataset& dataset, const std::vector<std::string>& endpoints, bool changed) {
    const std::string key = key_of(dataset);
    const Shard::Held held = dataset.shard->call([&](Shard& shard) { return shard.held(dataset.dataset_id); });
    const auto& own = held.blocks;
    const auto last_handover = last_handovers_.find(key);
    // The dataset is being removed, or there are no peers.
    if (own == nullptr || (last_handover == last_handovers_.end() && endpoints.empty())) return;
    const std::uint64_t own_changes = own->changes();
    const std::uint64_t own_digests = held.digests == nullptr ? 0 : held.digests->changes();
    if (!changed && last_handover != last_handovers_.end() && last_handover->second.endpoints == endpoints &&
        last_handover->second.own == own && last_handover->second.own_changes == own_changes &&
        last_handover->second.own_digests == own_digests) {
        return;
    }
    PeerBlocks current = blocks_of(dataset, endpoints, *own, held.digests.get());
    if (last_handover != last_handovers_.end()) {
        const PeerBlocks& previous = *last_handover->second.blocks;
        for (std::uint32_t block = 0; block < current.holder.size() && !current.lost_some; ++block) {
            current.lost_some =
                previous.holds(block) && !current.holds(block) && !own->holds(dataset.manifest->block_id(block));
        }
    }
    const auto blocks = std::make_shared<const PeerBlocks>(std::move(current));
    last_handovers_[key] = {
        .blocks = blocks, .endpoints = endpoints, .own = own, .own_changes = own_changes, .own_digests = own_digests};
    dataset.shard->post([id = dataset.dataset_id, blocks](Shard& shard) { shard.set_peers(id, blocks); });
}

PeerBlocks PeerDirectory::blocks_of(const PeerDataset& dataset, const std::vector<std::string>& endpoints,
                                    const HeldBlocks& own, const ReadDigests* own_digests) {
    const protocol::Manifest& manifest = *dataset.manifest;
    const std::string key = key_of(dataset);
    PeerBlocks blocks{.manifest = dataset.manifest, .peers = {}, .holder = {}, .digests = nullptr};
    if (witnesses_ > 0) {
        blocks.digests = std::make_shared<const std::vector<BlockDigest>>(trusted_digests(dataset, own_digests));
    }
    std::vector<const std::vector<std::uint8_t>*> held;
    for (const std::string& endpoint : endpoints) {
        const auto open = [origin = peers_.at(endpoint).origin, url = url_of(endpoint, dataset, "blocks"),
                           &transfers = transfers_](Device& device) {
            return make_http_peer({.origin = origin, .url = url}, device, transfers);
        };
        const auto last_answer = last_answers_.find({endpoint, key});
        const bool known = last_answer != last_answers_.end();
        blocks.peers.push_back({.key = endpoint + "/" + key,
                                .open = open,
                                .room_bytes = known ? last_answer->second.room_bytes : 0,
                                .conduct = peers_.at(endpoint).conduct});
        held.push_back(known ? &last_answer->second.bits : nullptr);
    }
    blocks.holder.assign(manifest.block_count(), 0);
    for (std::uint32_t block = 0; block < manifest.block_count(); ++block) {
        if (own.holds(manifest.block_id(block))) continue;
        if (witnesses_ > 0 && !blocks.digest(block).is_known()) continue;
        // If several peers hold the block, the hash spreads the reads over them.
        const std::size_t first = held.empty() ? 0 : mix64(block) % held.size();
        for (std::size_t i = 0; i < held.size(); ++i) {
            const std::size_t peer = (first + i) % held.size();
            if (held[peer] == nullptr || (((*held[peer])[block / 8] >> (block % 8)) & 1) == 0) continue;
            blocks.holder[block] = static_cast<std::uint8_t>(peer + 1);
            blocks.bytes += manifest.block_bytes(block);
            break;
        }
    }
    return blocks;
}

// The digests that peers' bytes are checked against, by block: from this node's own reads, else those on which enough
// peers agree. A peer that contradicts what this node has read is excluded for a while.
std::vector<BlockDigest> PeerDirectory::trusted_digests(const PeerDataset& dataset, const ReadDigests* own_digests) {
    const std::uint32_t block_count = dataset.manifest->block_count();
    std::vector<BlockDigest> digests =
        own_digests == nullptr ? std::vector<BlockDigest>(block_count) : own_digests->of(*dataset.manifest);
    const auto claims = claims_.find(key_of(dataset));
    if (claims == claims_.end()) return digests;
    for (std::uint32_t block = 0; block < block_count; ++block) {
        if (!digests[block].is_known()) {
            digests[block] = claims->second.witnesses.agreed(block);
            continue;
        }
        for (const Witnesses::Node number : claims->second.witnesses.take_contradicting(block, digests[block])) {
            const auto peer = std::ranges::find(peers_, number, [](const auto& item) { return item.second.number; });
            if (peer == peers_.end()) continue;
            if (!peer->second.conduct->note_wrong_bytes(clock_.now_ns())) continue;
            log_warn("a peer contradicts the remote; it is not read from for a while",
                     {{"peer", peer->first}, {"dataset", dataset.name}, {"block", block}});
        }
    }
    return digests;
}

}  // namespace larder::cache
