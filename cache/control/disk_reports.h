#pragma once

// Says in the log when a dataset's disk takes no more blocks, and when it does again. It is looked at every second or
// so, and each trouble is one line however long it lasts: a full disk still takes a small block now and then, where one
// fits behind the others, so it is well only when it has been for a minute. On the control thread.

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "cache/shard/statistics.h"

namespace larder::cache {

class DiskReports {
public:
    static constexpr std::int64_t kWellAfterNs = 60'000'000'000;

    // `datasets` are all that are served.
    void look(std::span<const DatasetStatistics> datasets, std::int64_t now_ns);

private:
    std::map<std::uint64_t, std::int64_t> trouble_seen_ns_;  // when last, by id of the datasets reported as in trouble
};

}  // namespace larder::cache
