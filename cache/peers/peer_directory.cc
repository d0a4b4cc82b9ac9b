#include "cache/peers/peer_directory.h"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <deque>
#include <semaphore>
#include <set>

#include "base/hash.h"
#include "base/server/http.h"
#include "base/server/logging.h"
#include "base/server/percent_encoding.h"
#include "cache/remote/http_remote.h"

namespace larder::cache {
namespace {

std::string key_of(const PeerDataset& dataset) {
    return dataset.name + "/" + dataset.fingerprint;
}

std::string url_of(const std::string& endpoint, const PeerDataset& dataset) {
    return endpoint + "/v1/peers/" + percent_encode(dataset.name) + "/" + dataset.fingerprint + "/blocks";
}

}  // namespace

struct PeerDirectory::PeerQuery {
    HttpGet get;
    std::string endpoint;
    const PeerDataset* dataset = nullptr;
    std::counting_semaphore<>* ended = nullptr;
};

PeerDirectory::PeerDirectory(const PeerDatasets& datasets, HttpTransfers& transfers, std::string token)
    : datasets_(datasets), transfers_(transfers), token_(std::move(token)), thread_([this] { run(); }) {
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

void PeerDirectory::set_peers(std::vector<std::string> endpoints) {
    std::ranges::sort(endpoints);
    endpoints.erase(std::ranges::unique(endpoints).begin(), endpoints.end());
    if (endpoints.size() > kPeersMax) endpoints.resize(kPeersMax);
    const std::lock_guard lock(mutex_);
    if (endpoints_ == endpoints) return;
    endpoints_ = std::move(endpoints);
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

void PeerDirectory::ask_all() {
    std::vector<std::string> endpoints;
    {
        const std::lock_guard lock(mutex_);
        endpoints = endpoints_;
    }
    std::erase_if(peers_, [&](const auto& peer) { return !std::ranges::binary_search(endpoints, peer.first); });
    for (const std::string& endpoint : endpoints) {
        Peer& peer = peers_[endpoint];
        if (peer.origin != nullptr) continue;
        peer.origin = std::make_shared<const PeerOrigin>(endpoint, token_);
        peer.status.endpoint = endpoint;
    }
    const std::vector<PeerDataset> datasets = datasets_.all();

    std::counting_semaphore<> ended(0);
    std::deque<PeerQuery> queries;
    for (const PeerDataset& dataset : datasets) {
        for (const auto& [endpoint, peer] : peers_) {
            PeerQuery& query = queries.emplace_back();
            query.endpoint = endpoint;
            query.dataset = &dataset;
            query.ended = &ended;
            query.get.context = &query;
            query.get.done = [](HttpGet& get) noexcept { static_cast<PeerQuery*>(get.context)->ended->release(); };
            query.get.origin = peer.origin.get();
            query.get.owner = this;
            query.get.ask = HttpRequestKind::text;
            const auto last_answer = last_answers_.find({endpoint, key_of(dataset)});
            query.get.url = url_of(endpoint, dataset);
            if (last_answer != last_answers_.end()) query.get.url += "?since=" + last_answer->second.state.text();
        }
    }
    for (PeerQuery& query : queries) transfers_.submit(query.get);
    for (std::size_t i = 0; i < queries.size(); ++i) ended.acquire();

    std::set<std::string> changed;
    for (PeerQuery& query : queries) {
        if (take_answer(query, peers_.at(query.endpoint))) changed.insert(key_of(*query.dataset));
    }
    std::set<std::string> current_keys;
    for (const PeerDataset& dataset : datasets) {
        const std::string key = key_of(dataset);
        current_keys.insert(key);
        hand_over(dataset, endpoints, changed.contains(key));
    }
    std::erase_if(last_handovers_, [&](const auto& item) { return !current_keys.contains(item.first); });
    std::erase_if(last_answers_, [&](const auto& item) {
        return !current_keys.contains(item.first.second) || !peers_.contains(item.first.first);
    });
    for (auto& [endpoint, peer] : peers_) peer.status.held_blocks = peer.status.room_bytes = 0;
    for (const auto& [key, last_answer] : last_answers_) {
        peers_.at(key.first).status.room_bytes += last_answer.room_bytes;
        for (const std::uint8_t byte : last_answer.bits) {
            peers_.at(key.first).status.held_blocks += static_cast<unsigned>(std::popcount(byte));
        }
    }
    std::vector<PeerStatus> status;
    status.reserve(peers_.size());
    for (const auto& [endpoint, peer] : peers_) status.push_back(peer.status);
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
    const std::string problem = answer || missing           ? ""
                                : query.get.message.empty() ? "its answer is invalid"
                                                            : query.get.message;
    const bool answers = problem.empty();
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

void PeerDirectory::hand_over(const PeerDataset& dataset, const std::vector<std::string>& endpoints, bool changed) {
    const std::string key = key_of(dataset);
    const auto own = dataset.shard->call([&](Shard& shard) { return shard.held(dataset.dataset_id).blocks; });
    const auto last_handover = last_handovers_.find(key);
    // The dataset is being removed, or there are no peers.
    if (own == nullptr || (last_handover == last_handovers_.end() && endpoints.empty())) return;
    const std::uint64_t own_changes = own->changes();
    if (!changed && last_handover != last_handovers_.end() && last_handover->second.endpoints == endpoints &&
        last_handover->second.own == own && last_handover->second.own_changes == own_changes) {
        return;
    }
    PeerBlocks current = blocks_of(dataset, endpoints, *own);
    if (last_handover != last_handovers_.end()) {
        const PeerBlocks& previous = *last_handover->second.blocks;
        for (std::uint32_t block = 0; block < current.holder.size() && !current.lost_some; ++block) {
            current.lost_some =
                previous.holds(block) && !current.holds(block) && !own->holds(dataset.manifest->block_id(block));
        }
    }
    const auto blocks = std::make_shared<const PeerBlocks>(std::move(current));
    last_handovers_[key] = {.blocks = blocks, .endpoints = endpoints, .own = own, .own_changes = own_changes};
    dataset.shard->post([id = dataset.dataset_id, blocks](Shard& shard) { shard.set_peers(id, blocks); });
}

PeerBlocks PeerDirectory::blocks_of(const PeerDataset& dataset, const std::vector<std::string>& endpoints,
                                    const HeldBlocks& own) const {
    const protocol::Manifest& manifest = *dataset.manifest;
    const std::string key = key_of(dataset);
    PeerBlocks blocks{.manifest = dataset.manifest, .peers = {}, .holder = {}};
    std::vector<const std::vector<std::uint8_t>*> held;
    for (const std::string& endpoint : endpoints) {
        const auto open = [origin = peers_.at(endpoint).origin, url = url_of(endpoint, dataset),
                           &transfers = transfers_](Device& device) {
            return make_http_peer({.origin = origin, .url = url}, device, transfers);
        };
        const auto last_answer = last_answers_.find({endpoint, key});
        const bool known = last_answer != last_answers_.end();
        blocks.peers.push_back(
            {.key = endpoint + "/" + key, .open = open, .room_bytes = known ? last_answer->second.room_bytes : 0});
        held.push_back(known ? &last_answer->second.bits : nullptr);
    }
    blocks.holder.assign(manifest.block_count(), 0);
    for (std::uint32_t block = 0; block < manifest.block_count(); ++block) {
        if (own.holds(manifest.block_id(block))) continue;
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

}  // namespace larder::cache
