// Measures each step of a block's way from a daemon's memory to a training loop, in nanoseconds. Use it when you change
// one of these steps. Run `build/release/bin/larder-microbench`; its flags are Google Benchmark's.

#include <benchmark/benchmark.h>

#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "cache/shard/token_bucket.h"
#include "loader/client_block_table.h"
#include "loader/permutation.h"

namespace larder::bench {
namespace {

// Computes a sample's position in the epoch's order.
void permutation(benchmark::State& state) {
    const auto samples = static_cast<std::uint64_t>(state.range(0));
    const detail::Permutation order(samples, 7, 1, 0);
    std::uint64_t position = 0;
    for (auto _ : state) {
        benchmark::DoNotOptimize(order(position));
        position = position + 1 < samples ? position + 1 : 0;
    }
}
BENCHMARK(permutation)->Arg(1'281'167)->Arg(100'000'000);

// Adds a block's entry to the loader's table, finds it and removes it.
void block_table(benchmark::State& state) {
    detail::ClientBlockTable table;
    std::uint32_t block = 0;
    for (auto _ : state) {
        const std::uint32_t tag = table.acquire(block).tag;
        benchmark::DoNotOptimize(table.acquire(block).tag);
        table[tag].references = 0;
        table.erase(tag);
        block = (block + 7919) % 1'000'003;
    }
}
BENCHMARK(block_table);

// Asks the job's rate limit, as for each miss.
void token_bucket(benchmark::State& state) {
    cache::TokenBucket bucket;
    bucket.set_limit(1e15, std::uint64_t{1} << 40, 0);
    const SteadyClock clock;
    const std::int64_t now_ns = clock.now_ns();
    for (auto _ : state) benchmark::DoNotOptimize(bucket.try_take(131'072, now_ns));
}
BENCHMARK(token_bucket);

// Computes the checksum of each block admitted or read from disk.
void checksum(benchmark::State& state) {
    const std::vector<std::byte> block(static_cast<std::size_t>(state.range(0)), std::byte{7});
    for (auto _ : state) benchmark::DoNotOptimize(crc32c(block));
    state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(checksum)->Arg(4 << 10)->Arg(128 << 10)->Arg(1 << 20);

}  // namespace
}  // namespace larder::bench

BENCHMARK_MAIN();
