#pragma once

// Hands cached blocks of one dataset to whoever sends them to other nodes, and never asks the remote for one. A block
// in memory is lent where it lies, one on disk is read into one of a few slots first and its CRC checked; either stays
// as it is until it is given back. More than the slots are waits in order. On the shard's thread; like a Scan it is a
// Consumer without a client, and may go when it is closed and nothing is lent any more.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cache/protocol/manifest.h"
#include "cache/shard/fetch.h"

namespace larder::cache {

class BlockServer;

// Readable until `token` goes back; of a block that is not cached here the payload is empty.
struct LentBlock {
    std::span<const std::byte> payload;
    std::uint32_t payload_crc = 0;
    std::uint32_t raw_bytes = 0;  // 0: the payload is the block; else a zstd frame of it
    std::uint64_t token = 0;      // 0: there is nothing to give back
};
using Lend = std::function<void(const LentBlock&)>;

class Lender final : public Consumer {
public:
    Lender(BlockServer& server, Job& job, std::uint32_t slots);
    ~Lender() override;

    // `lend` is called once, here or in a later turn.
    void ask(std::shared_ptr<const protocol::Manifest> manifest, std::uint32_t block, Lend lend);
    void give_back(std::uint64_t token);
    // Whoever waits is told that there is nothing.
    void stop();

    const protocol::Manifest& manifest() const override { return *server_manifest_; }
    bool cached_only() const override { return true; }
    std::byte* slot(const Fetch& fetch) override;
    void deliver(const Fetch& fetch, const Delivery& delivery) override;
    void pin(const Fetch&) override {}
    void unpin(std::uint32_t, std::uint32_t) override {}

private:
    struct Wish {
        std::shared_ptr<const protocol::Manifest> manifest;
        std::uint32_t block = 0;
        Lend lend;
    };
    struct Slot {
        bool taken = false;
        Wish wish;
        std::size_t memory_bytes = 0;
        std::unique_ptr<std::byte, void (*)(void*)> memory{nullptr, nullptr};
    };

    bool serve(Wish& wish);
    void serve_waiting();

    BlockServer& server_;
    std::shared_ptr<const protocol::Manifest> server_manifest_;
    std::vector<Slot> slots_;
    std::vector<const Segment*> lent_segments_;  // by place; null where free
    std::deque<Wish> waiting_;
};

}  // namespace larder::cache
