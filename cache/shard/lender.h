#pragma once

// A Lender lends cached blocks of one dataset to the code that sends them to other nodes. It never asks the remote. A
// block in memory is lent in place. A block on disk is first read into one of a few slots, and its CRC is checked. The
// bytes stay unchanged until the block is returned. Requests for which no slot is free wait in order. On the shard's
// thread. Like a Scan, a Lender is a Consumer without a client. It may be deleted when it is closed and nothing is
// lent.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "cache/protocol/manifest.h"
#include "cache/shard/fetch.h"
#include "cache/shard/page_memory.h"

namespace larder::cache {

class BlockServer;

// A lent block, readable until `token` is returned. The payload is empty if the block is not cached here.
struct LentBlock {
    std::span<const std::byte> payload;
    std::uint32_t payload_crc = 0;
    std::uint32_t raw_bytes = 0;  // 0: the payload is the block; else the block's size, and the payload is a zstd frame
    std::uint64_t token = 0;      // 0: nothing to return
};
using Lend = std::function<void(const LentBlock&)>;

class Lender final : public Consumer {
public:
    Lender(BlockServer& server, ShardJob& job, std::uint32_t slots);
    ~Lender() override;

    // Calls `lend` once, here or in a later turn.
    void ask(std::shared_ptr<const protocol::Manifest> manifest, std::uint32_t block, Lend lend);
    void return_block(std::uint64_t token);
    // Closes the Lender. Waiting requests get no block.
    void stop();

    const protocol::Manifest& manifest() const override { return *server_manifest_; }
    bool cached_only() const override { return true; }
    std::byte* slot(const Fetch& fetch) override;
    void deliver(const Fetch& fetch) override;
    void mark_busy(const Fetch&) override {}
    void clear_busy(std::uint32_t, std::uint32_t) override {}

private:
    struct LendRequest {
        std::shared_ptr<const protocol::Manifest> manifest;
        std::uint32_t block = 0;
        Lend lend;
    };
    struct Slot {
        bool taken = false;
        LendRequest request;
        std::size_t memory_bytes = 0;
        PageMemory memory;
    };

    bool serve(LendRequest& request);
    void serve_waiting();

    BlockServer& server_;
    std::shared_ptr<const protocol::Manifest> server_manifest_;
    std::vector<Slot> slots_;
    std::vector<const Segment*> lent_segments_;  // by index in the token; null if free
    std::deque<LendRequest> waiting_;
};

}  // namespace larder::cache
