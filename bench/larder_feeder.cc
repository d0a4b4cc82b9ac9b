#include "bench/larder_feeder.h"

#include "base/clock.h"

namespace larder::bench {

Result<LarderFeeder> LarderFeeder::open(LoaderOptions options) {
    auto loader = Loader::open(std::move(options));
    if (!loader) return std::unexpected(loader.error());
    return LarderFeeder(std::move(*loader));
}

Result<std::optional<FedBatch>> LarderFeeder::next() {
    auto batch = loader_.next();
    if (!batch) return std::unexpected(batch.error());
    if (!*batch) return std::nullopt;
    const SteadyClock clock;
    const std::int64_t began_ns = clock.now_ns();
    FedBatch fed;
    for (const Sample& sample : (*batch)->samples()) {
        checksum_ += sum_bytes(sample.bytes().data(), sample.bytes().size());
        fed.bytes += sample.bytes().size();
    }
    fed.reading_ns = clock.now_ns() - began_ns;
    return fed;
}

FeederTotals LarderFeeder::totals() const {
    const LoaderStatistics statistics = loader_.statistics();
    FeederTotals totals;
    totals.hits = statistics.memory_blocks + statistics.disk_blocks + statistics.peer_blocks;
    totals.blocks = totals.hits + statistics.remote_blocks;
    totals.bytes = statistics.bytes;
    return totals;
}

}  // namespace larder::bench
