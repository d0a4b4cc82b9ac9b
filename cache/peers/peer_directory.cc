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
    std::deque<PeerQuery> askings;
    for (const PeerDataset& dataset : datasets) {
        for (const auto& [endpoint, peer] : peers_) {
            PeerQuery& asking = askings.emplace_back();
            asking.endpoint = endpoint;
            asking.dataset = &dataset;
            asking.ended = &ended;
            asking.get.context = &asking;
            asking.get.done = [](HttpGet& get) noexcept { static_cast<PeerQuery*>(get.context)->ended->release(); };
            asking.get.origin = peer.origin.get();
            asking.get.owner = this;
            asking.get.ask = HttpRequestKind::text;
            const auto said = said_.find({endpoint, key_of(dataset)});
            asking.get.url = url_of(endpoint, dataset);
            if (said != said_.end()) asking.get.url += "?since=" + said->second.state.text();
        }
    }
    for (PeerQuery& asking : askings) transfers_.submit(asking.get);
    for (std::size_t i = 0; i < askings.size(); ++i) ended.acquire();

    std::set<std::string> changed;
    for (PeerQuery& asking : askings) {
        if (take(asking, peers_.at(asking.endpoint))) changed.insert(key_of(*asking.dataset));
    }
    std::set<std::string> kept;
    for (const PeerDataset& dataset : datasets) {
        const std::string key = key_of(dataset);
        kept.insert(key);
        hand_over(dataset, endpoints, changed.contains(key));
    }
    std::erase_if(given_, [&](const auto& of) { return !kept.contains(of.first); });
    std::erase_if(said_,
                  [&](const auto& of) { return !kept.contains(of.first.second) || !peers_.contains(of.first.first); });
    for (auto& [endpoint, peer] : peers_) peer.status.held_blocks = peer.status.room_bytes = 0;
    for (const auto& [of, said] : said_) {
        peers_.at(of.first).status.room_bytes += said.room_bytes;
        for (const std::uint8_t byte : said.bits) {
            peers_.at(of.first).status.held_blocks += static_cast<unsigned>(std::popcount(byte));
        }
    }
    std::vector<PeerStatus> status;
    status.reserve(peers_.size());
    for (const auto& [endpoint, peer] : peers_) status.push_back(peer.status);
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
}

// True if the peer's answer differs from its last one.
bool PeerDirectory::take(PeerQuery& asking, Peer& peer) {
    const protocol::Manifest& manifest = *asking.dataset->manifest;
    const Key key{asking.endpoint, key_of(*asking.dataset)};
    const bool missing = asking.get.outcome == HttpOutcome::missing;
    std::optional<HeldAnswer> answer;
    if (asking.get.outcome == HttpOutcome::ok) answer = decode_held(asking.get.body, manifest.block_count());
    const std::string problem = answer || missing            ? ""
                                : asking.get.message.empty() ? "its answer is invalid"
                                                             : asking.get.message;
    const bool answers = problem.empty();
    if (!answers && peer.status.problem != problem) {
        log_warn("a peer's cache cannot be read", {{"peer", asking.endpoint}, {"error", problem}});
    } else if (answers && !peer.status.answers) {
        log_info("a peer's cache can be read", {{"peer", asking.endpoint}});
    }
    peer.status.answers = answers;
    peer.status.problem = problem;
    if (!answer) return said_.erase(key) > 0;
    LastAnswer& said = said_[key];
    const bool is_new = answer->bits.has_value() || answer->room_bytes != said.room_bytes;
    said.room_bytes = answer->room_bytes;
    if (answer->bits) {
        said.state = answer->state;
        said.bits = std::move(*answer->bits);
    }
    return is_new;
}

void PeerDirectory::hand_over(const PeerDataset& dataset, const std::vector<std::string>& endpoints, bool changed) {
    const std::string key = key_of(dataset);
    const auto own = dataset.shard->call([&](Shard& shard) { return shard.held(dataset.dataset_id).blocks; });
    const auto before = given_.find(key);
    // The dataset is being removed, or there are no peers.
    if (own == nullptr || (before == given_.end() && endpoints.empty())) return;
    const std::uint64_t own_changes = own->changes();
    if (!changed && before != given_.end() && before->second.endpoints == endpoints && before->second.own == own &&
        before->second.own_changes == own_changes) {
        return;
    }
    PeerBlocks now = blocks_of(dataset, endpoints, *own);
    if (before != given_.end()) {
        const PeerBlocks& was = *before->second.blocks;
        for (std::uint32_t block = 0; block < now.holder.size() && !now.lost_some; ++block) {
            now.lost_some = was.holds(block) && !now.holds(block) && !own->holds(dataset.manifest->block_id(block));
        }
    }
    const auto blocks = std::make_shared<const PeerBlocks>(std::move(now));
    given_[key] = {.blocks = blocks, .endpoints = endpoints, .own = own, .own_changes = own_changes};
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
        const auto said = said_.find({endpoint, key});
        const bool known = said != said_.end();
        blocks.peers.push_back(
            {.key = endpoint + "/" + key, .open = open, .room_bytes = known ? said->second.room_bytes : 0});
        held.push_back(known ? &said->second.bits : nullptr);
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
