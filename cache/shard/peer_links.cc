#include "cache/shard/peer_links.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/hash.h"
#include "base/server/logging.h"
#include "cache/protocol/record.h"
#include "cache/protocol/wire.h"

namespace larder::cache {
namespace {

constexpr std::int64_t kPauseAfterFailure_ns = 1'000'000'000;

}  // namespace

bool PeerLinks::set(std::shared_ptr<const PeerBlocks> blocks) {
    link_of_peer_.clear();
    for (const PeerBlocks::Peer& peer : blocks->peers) {
        const auto known = std::ranges::find(links_, peer.key, &Link::key);
        if (known != links_.end()) {
            link_of_peer_.push_back(static_cast<std::size_t>(known - links_.begin()) + 1);
            known->room_bytes = peer.room_bytes;
            known->conduct = peer.conduct;
            continue;
        }
        auto remote = peer.open(device_);
        if (!remote) {
            log_warn("cannot read another node's cache", {{"peer", peer.key}, {"error", remote.error().message}});
            link_of_peer_.push_back(0);
            continue;
        }
        links_.push_back(
            {.key = peer.key, .remote = std::move(*remote), .room_bytes = peer.room_bytes, .conduct = peer.conduct});
        link_of_peer_.push_back(links_.size());
    }
    const bool had_some = blocks_ != nullptr && blocks_->bytes > 0;
    const bool lost_some = had_some && (blocks->lost_some || blocks->manifest != blocks_->manifest);
    blocks_ = std::move(blocks);
    taken_.clear();
    return lost_some;
}

std::size_t PeerLinks::link_to(const protocol::Manifest& manifest, std::uint32_t block, std::int64_t now_ns) const {
    if (blocks_ == nullptr || blocks_->manifest.get() != &manifest) return 0;
    std::size_t link = 0;
    if (blocks_->holds(block)) {
        link = link_of_peer_[blocks_->holder[block] - std::size_t{1}];
    } else if (const auto taken = taken_.find(block); taken != taken_.end()) {
        link = taken->second;
    }
    return link != 0 && links_[link - 1].is_usable(now_ns) ? link : 0;
}

std::size_t PeerLinks::link_with_room(const protocol::Manifest& manifest, std::uint32_t block, std::int64_t now_ns) {
    if (blocks_ == nullptr || blocks_->manifest.get() != &manifest) return 0;
    if (blocks_->holds(block) || taken_.contains(block)) return 0;
    const std::uint64_t bytes = protocol::record_bytes(manifest.block_bytes(block), protocol::kPageBytes);
    std::size_t chosen = 0;
    double best = 0;
    for (const std::size_t link : link_of_peer_) {
        if (link == 0 || links_[link - 1].room_bytes < bytes || !links_[link - 1].is_usable(now_ns)) continue;
        const Link& candidate = links_[link - 1];
        const std::uint64_t hash = mix64(block ^ mix64(std::hash<std::string>{}(candidate.key)));
        const double uniform = (static_cast<double>(hash >> 11) + 0.5) * 0x1p-53;
        const double score = -static_cast<double>(candidate.room_bytes) / std::log(uniform);
        if (chosen != 0 && score <= best) continue;
        chosen = link;
        best = score;
    }
    if (chosen != 0) links_[chosen - 1].room_bytes -= bytes;
    return chosen;
}

void PeerLinks::taken(std::size_t link, const protocol::Manifest& manifest, std::uint32_t block) {
    if (blocks_->manifest.get() == &manifest) taken_.emplace(block, link);
}

void PeerLinks::refused(std::size_t link) {
    links_[link - 1].room_bytes = 0;
}

void PeerLinks::sent_wrong_bytes(std::size_t link, std::int64_t now_ns) {
    const Link& wrong = links_[link - 1];
    if (wrong.conduct != nullptr && wrong.conduct->note_wrong_bytes(now_ns)) {
        log_warn("a peer sent wrong bytes; it is not read from for a while", {{"peer", wrong.key}});
    }
    failed(link, now_ns);
}

void PeerLinks::failed(std::size_t link, std::int64_t now_ns) {
    links_[link - 1].not_before_ns = now_ns + kPauseAfterFailure_ns;
}

}  // namespace larder::cache
