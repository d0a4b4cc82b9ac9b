#pragma once

// The links of a dataset to other nodes' caches: what the peers hold (PeerBlocks), and a PeerRemote for each. After a
// failure a peer is not used for one second, and after wrong bytes not while its PeerConduct excludes it. On the
// shard's thread.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/device.h"
#include "cache/shard/peer_blocks.h"

namespace larder::cache {

class PeerLinks {
public:
    // `device` must outlive the PeerLinks.
    explicit PeerLinks(Device& device) : device_(device) {}

    // Replaces what peers hold. True if a block that a peer held before is no longer held by any.
    bool set(std::shared_ptr<const PeerBlocks> blocks);
    // Null before the first `set`.
    const std::shared_ptr<const PeerBlocks>& blocks() const { return blocks_; }

    // Returns the link through which to read this block of this version: above 0, and valid as long as the PeerLinks.
    // Returns 0 if no peer can be asked.
    std::size_t link_to(const protocol::Manifest& manifest, std::uint32_t block, std::int64_t now_ns) const;
    void read(std::size_t link, RemoteRead& read) { links_[link - 1].remote->read(read); }
    void failed(std::size_t link, std::int64_t now_ns);
    // The peer sent other bytes than the block's.
    void sent_wrong_bytes(std::size_t link, std::int64_t now_ns);

    // Chooses a peer with room for a block that has no room here, and subtracts the block's size from the peer's room.
    // Returns 0 if a peer holds the block already, or if no peer has room. Uses rendezvous hashing over the peers with
    // room, weighted by their room (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998;
    // weights as in Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005).
    std::size_t link_with_room(const protocol::Manifest& manifest, std::uint32_t block, std::int64_t now_ns);
    void offer(std::size_t link, RemoteRead& block) { links_[link - 1].remote->offer(block); }
    // The peer took the block of this version: it counts as held there until the next `set`.
    void taken(std::size_t link, const protocol::Manifest& manifest, std::uint32_t block);
    // The peer refused a block. Nothing is offered to the peer until it reports its room again.
    void refused(std::size_t link);

private:
    struct Link {
        std::string key;
        std::unique_ptr<PeerRemote> remote;
        std::uint64_t room_bytes = 0;
        std::int64_t not_before_ns = 0;
        std::shared_ptr<PeerConduct> conduct;

        bool is_usable(std::int64_t now_ns) const {
            return not_before_ns <= now_ns && (conduct == nullptr || !conduct->is_excluded(now_ns));
        }
    };

    Device& device_;
    std::shared_ptr<const PeerBlocks> blocks_;
    std::vector<std::size_t> link_of_peer_;  // by peer of blocks_; 0: the peer could not be opened
    std::deque<Link> links_;                 // never shrinks, because reads may be in flight
    // The blocks taken by peers since blocks_ was set, and their links.
    std::unordered_map<std::uint32_t, std::size_t> taken_;
};

}  // namespace larder::cache
