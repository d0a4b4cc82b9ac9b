#include "cache/control/disk_reports.h"

#include "base/server/logging.h"

namespace larder::cache {

void DiskReports::update(std::span<const DatasetStatistics> datasets, std::int64_t now_ns) {
    std::map<std::uint64_t, std::int64_t> still_failing;
    problems_.clear();
    for (const DatasetStatistics& dataset : datasets) {
        const auto reported = trouble_seen_ns_.find(dataset.dataset_id);
        if (!dataset.disk_problem.empty()) {
            if (reported == trouble_seen_ns_.end()) {
                log_warn("the cache disk admits no more blocks; cached blocks are still served",
                         {{"dataset", dataset.name}, {"why", dataset.disk_problem}});
            }
            still_failing[dataset.dataset_id] = now_ns;
            problems_.push_back("dataset \"" + dataset.name +
                                "\": the cache disk admits no more blocks: " + dataset.disk_problem);
        } else if (reported != trouble_seen_ns_.end()) {
            if (now_ns - reported->second < kRecoveredAfterNs) {
                still_failing.insert(*reported);
            } else {
                log_info("the cache disk takes blocks again", {{"dataset", dataset.name}});
            }
        }
    }
    trouble_seen_ns_ = std::move(still_failing);
}

}  // namespace larder::cache
