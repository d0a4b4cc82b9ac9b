#pragma once

// The blocks of a dataset in a given order, for one who takes them one after the other: a few are read ahead, at once
// and decompressed, because a remote answers late rather than slowly. What is ahead is bounded in number and bytes; a
// block larger than the bound is read alone.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cache/object_source.h"
#include "cache/protocol/decompressor.h"
#include "cache/protocol/manifest.h"

namespace larder::cache {

struct BlockBytes {
    std::span<const std::byte> bytes;  // of one of those below, decompressed where it is compressed
    std::unique_ptr<ObjectReader> reader;
    std::unique_ptr<std::byte[]> raw;
};

class BlocksAhead {
public:
    static constexpr std::size_t kReadsMax = 8;
    static constexpr std::uint64_t kBytesMax = std::uint64_t{64} << 20;

    // `source` and `manifest` outlive it.
    BlocksAhead(ObjectSource& source, const protocol::Manifest& manifest, std::vector<std::uint32_t> order);
    // Waits for the reads under way.
    ~BlocksAhead();
    BlocksAhead(const BlocksAhead&) = delete;
    BlocksAhead& operator=(const BlocksAhead&) = delete;

    // The next of `order`; call it that many times, and not after an error.
    Result<BlockBytes> next();

private:
    struct Slot {
        std::uint64_t bytes = 0;
        std::optional<Result<BlockBytes>> block;
    };

    void run();
    bool may_start() const;
    std::uint64_t memory_bytes(std::uint32_t block) const;
    Result<BlockBytes> read(std::uint32_t block, protocol::Decompressor& decompressor);

    ObjectSource& source_;
    const protocol::Manifest& manifest_;
    const std::vector<std::uint32_t> order_;
    std::mutex mutex_;  // over what follows
    std::condition_variable changed_;
    bool stopping_ = false;
    std::size_t started_ = 0;  // of `order_`
    std::uint64_t bytes_ = 0;  // of the slots
    std::deque<Slot> slots_;   // of what is started and not taken; references stay good
    std::vector<std::jthread> threads_;
};

}  // namespace larder::cache
