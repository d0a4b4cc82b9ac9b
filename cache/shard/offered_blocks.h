#pragma once

// Takes blocks that other nodes offer because their caches are full. Each block lies in memory of its own, like in a
// session's slot, until it is cached or refused. On the shard's thread.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cache/protocol/manifest.h"
#include "cache/shard/fetch.h"

namespace larder::cache {

class BlockServer;

// An offered block. `record` is page-aligned memory for the block's record; only the payload is filled in.
struct OfferedBlock {
    std::shared_ptr<const protocol::Manifest> manifest;
    std::uint32_t block = 0;
    std::uint32_t payload_crc = 0;
    BlockDigest digest;
    std::uint32_t pages = 0;
    std::unique_ptr<std::byte, void (*)(void*)> record{nullptr, nullptr};
};

class OfferedBlocks final : public Consumer {
public:
    OfferedBlocks(BlockServer& server, ShardJob& job);
    ~OfferedBlocks() override;

    // See BlockServer::admit_offered.
    bool take(OfferedBlock offered);
    void stop() { closed_ = true; }

    const protocol::Manifest& manifest() const override { return *server_manifest_; }
    bool cached_only() const override { return true; }
    std::byte* slot(const Fetch& fetch) override { return slots_[fetch.slot_page].offered.record.get(); }
    void deliver(const Fetch&) override {}
    void mark_busy(const Fetch& fetch) override { slots_[fetch.slot_page].busy = true; }
    void clear_busy(std::uint32_t slot_page, std::uint32_t) override { slots_[slot_page] = {}; }

private:
    struct Slot {
        OfferedBlock offered;
        bool busy = false;
    };

    BlockServer& server_;
    std::shared_ptr<const protocol::Manifest> server_manifest_;
    std::vector<Slot> slots_;  // a slot without a record is free
};

}  // namespace larder::cache
