#pragma once

// A dataset's ways to other nodes' caches: what they hold (PeerBlocks), and for each a Remote that reads from there. A
// peer that fails is left alone for a second. On the shard's thread.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cache/device.h"
#include "cache/shard/peer_blocks.h"

namespace larder::cache {

class PeerLinks {
public:
    // `device` must outlive it.
    explicit PeerLinks(Device& device) : device_(device) {}

    // Whether blocks that were held before are not any more.
    bool set(std::shared_ptr<const PeerBlocks> blocks);
    // Null: no peer was ever heard of.
    const std::shared_ptr<const PeerBlocks>& blocks() const { return blocks_; }

    // Where to read this block of this version: a number above 0, good for as long as the PeerLinks; 0: nowhere.
    std::size_t link_to(const protocol::Manifest& manifest, std::uint32_t block, std::int64_t now_ns) const;
    void read(std::size_t link, RemoteRead& read) { links_[link - 1].remote->read(read); }
    void failed(std::size_t link, std::int64_t now_ns);

    // Which peer is to have a block that nobody holds and that has no room here: rendezvous hashing over those with
    // room, weighted by it (Wang and Ravishankar, "Using name-based mappings to increase hit rates", 1998; weights as
    // in Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005). Its room counts as used. 0: nobody.
    std::size_t link_with_room(const protocol::Manifest& manifest, std::uint32_t block, std::int64_t now_ns);
    void offer(std::size_t link, RemoteRead& block) { links_[link - 1].remote->offer(block); }
    // It did not want the block: nothing is offered to it until it says anew what room it has.
    void refused(std::size_t link);

private:
    struct Link {
        std::string key;
        std::unique_ptr<PeerRemote> remote;
        std::uint64_t room_bytes = 0;
        std::int64_t not_before_ns = 0;
    };

    Device& device_;
    std::shared_ptr<const PeerBlocks> blocks_;
    std::vector<std::size_t> link_of_peer_;  // by peer of blocks_; 0: it cannot be opened
    std::deque<Link> links_;                 // kept, since reads may be under way
};

}  // namespace larder::cache
