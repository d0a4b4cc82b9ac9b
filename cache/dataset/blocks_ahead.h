#pragma once

// Reads the blocks of a dataset ahead, for one consumer that takes them in a given order. Threads read and decompress a
// few blocks at once, because a remote has high latency rather than low throughput. The blocks read ahead are bounded
// in number and bytes; a block larger than the bound is read alone.

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
#include "cache/protocol/decompressor.h"
#include "cache/protocol/manifest.h"
#include "cache/remote/object_source.h"

namespace larder::cache {

struct BlockBytes {
    std::span<const std::byte> bytes;  // decompressed; owned by `raw` if the block is compressed, else by `reader`
    std::unique_ptr<ObjectReader> reader;
    std::unique_ptr<std::byte[]> raw;
};

class BlocksAhead {
public:
    static constexpr std::size_t kReadsMax = 8;
    static constexpr std::uint64_t kBytesMax = std::uint64_t{64} << 20;

    // `source` and `manifest` must outlive this object.
    BlocksAhead(ObjectSource& source, const protocol::Manifest& manifest, std::vector<std::uint32_t> order);
    // Waits for the reads in flight.
    ~BlocksAhead();
    BlocksAhead(const BlocksAhead&) = delete;
    BlocksAhead& operator=(const BlocksAhead&) = delete;

    // Waits until the next block of `order` is read, and returns it. Call it at most once for each block of `order`,
    // and not after an error.
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
    std::mutex mutex_;  // guards the members below
    std::condition_variable changed_;
    bool stopping_ = false;
    std::size_t started_ = 0;  // entries of `order_` whose read has started
    std::uint64_t bytes_ = 0;  // sum of Slot::bytes
    std::deque<Slot> slots_;   // reads started whose block is not yet taken; a deque keeps references to slots valid
    std::vector<std::jthread> threads_;
};

}  // namespace larder::cache
