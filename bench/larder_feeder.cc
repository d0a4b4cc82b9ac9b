#include "bench/larder_feeder.h"

namespace larder::bench {

Result<LarderFeeder> LarderFeeder::open(LoaderOptions options) {
    auto loader = Loader::open(std::move(options));
    if (!loader) return std::unexpected(loader.error());
    return LarderFeeder(std::move(*loader));
}

Result<std::optional<std::uint64_t>> LarderFeeder::next() {
    auto batch = loader_.next();
    if (!batch) return std::unexpected(batch.error());
    if (!*batch) return std::nullopt;
    std::uint64_t bytes = 0;
    for (const Sample& sample : (*batch)->samples()) {
        checksum_ += sum_bytes(sample.bytes().data(), sample.bytes().size());
        bytes += sample.bytes().size();
    }
    return bytes;
}

FeederTotals LarderFeeder::totals() const {
    const LoaderStatistics statistics = loader_.statistics();
    FeederTotals totals;
    totals.hits = statistics.memory_blocks + statistics.disk_blocks;
    totals.blocks = totals.hits + statistics.remote_blocks;
    totals.bytes = statistics.bytes;
    return totals;
}

}  // namespace larder::bench
