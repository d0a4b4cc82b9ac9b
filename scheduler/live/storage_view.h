#pragma once

// What decisions need of the allocator: datasets and where they are cached, bandwidth, and the jobs' rates as the plan
// in force predicts them; and how far jobs have come, by what nodes report was read.

#include <map>
#include <string>
#include <vector>

#include "allocator/cluster.h"
#include "scheduler/live/queue.h"
#include "scheduler/snapshot.h"

namespace larder::scheduler {

// Of a job that reads.
struct JobRates {
    double ideal = 0;  // f*, measured or declared
    bool ideal_is_measured = false;
    double predicted = 0;  // bytes per second, by the plan in force
    double granted = 0;    // of the remote
    double hit_ratio = 0;
    double unread_bytes = 0;  // of its epoch
};

struct CachedOn {
    std::uint32_t node = 0;  // index in StorageView::nodes
    std::uint64_t bytes = 0;
};

struct StorageView {
    std::vector<std::string> nodes;  // that report
    std::vector<DatasetState> datasets;
    std::vector<std::vector<CachedOn>> cached_on;  // by dataset
    Storage storage;
    std::map<std::string, JobRates> jobs;  // by the name its loaders connect with
};

StorageView storage_view(const allocator::Cluster& cluster, std::int64_t now_ns);

// Takes what nodes report of the jobs into their records.
void take_reads(const allocator::Cluster& cluster, JobQueue& queue);
// The job starts for the first time: what was read under its name before is not its own.
void begin_reads(const allocator::Cluster& cluster, JobRecord& job);

}  // namespace larder::scheduler
