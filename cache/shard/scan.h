#pragma once

// A Scan is the daemon's own reader of a dataset. It fetches blocks ahead of any job (warm), or rereads cached blocks
// and drops bad ones (verify). It asks the BlockServer as a session does, with slots of its own, a few blocks at a
// time. Training jobs have no priority over a Scan, but never wait long behind one.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/file.h"
#include "cache/protocol/manifest.h"
#include "cache/shard/fetch.h"
#include "cache/shard/page_memory.h"
#include "cache/shard/shard.h"
#include "cache/shard/warm_blocks.h"

namespace larder::cache {

class BlockServer;

class Scan final : public Consumer {
public:
    Scan(ScanKind kind, BlockServer& server, ShardJob& job, std::shared_ptr<ScanProgress> progress,
         std::uint32_t blocks_in_flight, const std::int64_t& now_ns);
    ~Scan() override;

    // Does some work. Call every turn until `finished`. Returns the time at which the next turn is needed.
    std::int64_t step();
    bool finished() const { return finished_; }
    // Starts no more reads. The scan is finished when everything in flight has ended.
    void stop();

    const protocol::Manifest& manifest() const override { return *manifest_; }
    bool is_scan() const override { return true; }
    std::byte* slot(const Fetch& fetch) override;
    void deliver(const Fetch& fetch) override;
    void mark_busy(const Fetch& fetch) override;
    void clear_busy(std::uint32_t slot_page, std::uint32_t slot_pages) override;

private:
    enum class SlotState : std::uint8_t { free, fetching, to_compare, comparing };
    struct Slot {
        RemoteRead read;
        Scan* scan = nullptr;
        SlotState state = SlotState::free;
        bool busy = false;
        bool failed = false;                      // nothing was read
        bool unsettled = false;                   // warm: not known yet whether the block was admitted
        std::optional<std::uint32_t> cached_crc;  // of the cached block, decompressed
        bool failed_once = false;                 // the remote's bytes did not match the manifest's checksum
        std::uint32_t block = 0;
    };

    void finish_when(bool done);
    bool is_wanted(std::uint32_t block);
    bool start_next_phase();
    void settle_warmed(Slot& slot);
    static std::uint32_t block_crc(const std::byte* record, const BlockLocation& location);
    bool check_in_memory(Slot& slot);
    bool is_as_indexed(std::uint32_t block, std::uint32_t crc) const;
    void note(BlockFound::What what, std::uint32_t block, std::string why = {});
    void drop_bad(std::uint32_t block);
    bool evaluate_comparison(Slot& slot);
    void begin(Slot& slot, std::uint32_t block);
    bool compare_with_remote(Slot& slot);
    void finish_comparison(Slot& slot, protocol::BlockStatus status, int system_errno);
    void end(Slot& slot);

    ScanKind kind_;
    BlockServer& server_;
    std::shared_ptr<const protocol::Manifest> manifest_;
    std::shared_ptr<ScanProgress> progress_;
    const std::int64_t& now_ns_;
    std::uint32_t next_block_ = 0;
    std::size_t slot_bytes_;
    PageMemory memory_;
    std::vector<Slot> slots_;
    std::optional<WarmBlocks> warm_;
    std::int64_t settled_ns_ = 0;  // warm: when the last block was settled
    bool planned_ = false;
    bool is_counting_outcomes_ = false;
    bool finished_ = false;
};

}  // namespace larder::cache
