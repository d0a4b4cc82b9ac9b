#pragma once

// A Feeder that reads with Larder: a Loader on a daemon.

#include "bench/feeder.h"
#include "loader/larder.h"

namespace larder::bench {

class LarderFeeder final : public Feeder {
public:
    static Result<LarderFeeder> open(LoaderOptions options);
    Result<std::optional<FedBatch>> next() override;
    FeederTotals totals() const override;
    LoaderStatistics statistics() const { return loader_.statistics(); }
    std::uint64_t checksum() const { return checksum_; }

private:
    explicit LarderFeeder(Loader loader) : loader_(std::move(loader)) {}
    Loader loader_;
    std::uint64_t checksum_ = 0;
};

}  // namespace larder::bench
