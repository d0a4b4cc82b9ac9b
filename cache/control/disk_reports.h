#pragma once

// Logs when a dataset's disk stops admitting blocks, and when it recovers. Call `update` about once a second; each
// failure is logged once, however long it lasts. A full disk still admits a small block now and then, so the disk
// counts as recovered only after a minute without failure. Control thread only.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cache/shard/statistics.h"

namespace larder::cache {

class DiskReports {
public:
    static constexpr std::int64_t kRecoveredAfterNs = 60'000'000'000;

    // `datasets` holds all datasets that are served.
    void update(std::span<const DatasetStatistics> datasets, std::int64_t now_ns);

    // The result of the last update: a line for each dataset whose disk admits no blocks.
    const std::vector<std::string>& problems() const { return problems_; }

private:
    std::map<std::uint64_t, std::int64_t> trouble_seen_ns_;  // by dataset id: last failure seen
    std::vector<std::string> problems_;
};

}  // namespace larder::cache
