#pragma once

// The peer of the benches `curve` and `joint`: a reader with an LRU cache of blocks, as in conventional data-loading
// caches, which stores the blocks' bytes. It reads the same files in random order each epoch under the same rate limit,
// prefetches with a few threads, and keeps the blocks in an LruStore.

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "bench/fair_limiter.h"
#include "bench/feeder.h"
#include "bench/lru_store.h"
#include "bench/work_directory.h"
#include "cache/shard/token_bucket.h"

namespace larder::bench {

struct LruOptions {
    FileSet files;
    std::shared_ptr<LruStore> store;  // may be shared with other feeders
    std::uint32_t dataset = 0;        // its number in the store
    std::uint32_t batch_size = 1;
    std::uint64_t seed = 0;
    double remote_bytes_per_second = 0;
    std::uint64_t remote_burst_bytes = 0;
    std::shared_ptr<FairLimiter> shared_remote;  // a limit that feeders share, beside the own one; null: none
    std::size_t reader = 0;                      // the feeder's number in shared_remote
    std::uint32_t prefetch_blocks = 64;
    std::uint32_t threads = 2;
};

class LruFeeder final : public Feeder {
public:
    explicit LruFeeder(const LruOptions& options);
    ~LruFeeder() override;
    LruFeeder(const LruFeeder&) = delete;
    LruFeeder& operator=(const LruFeeder&) = delete;

    Result<std::optional<FedBatch>> next() override;
    FeederTotals totals() const override;

private:
    using Bytes = LruStore::Bytes;

    void prefetch();
    Result<Bytes> read_remote(std::uint32_t block);
    std::uint32_t block_at(std::uint64_t position);

    LruOptions options_;
    SteadyClock clock_;
    cache::TokenBucket bucket_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t order_epoch_ = ~std::uint64_t{0};
    std::vector<std::uint32_t> order_;
    std::unordered_map<std::uint64_t, Result<Bytes>> ready_;  // by position
    std::uint64_t next_to_read_ = 0;
    std::uint64_t next_to_deliver_ = 0;
    bool epoch_end_returned_ = false;
    std::uint64_t checksum_ = 0;
    FeederTotals totals_;
    bool stopping_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace larder::bench
