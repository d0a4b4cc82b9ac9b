#pragma once

// The allocator's state that decisions need: datasets and where they are cached, bandwidth, and the jobs' rates as the
// plan in force predicts them. Also counts the jobs' progress, by what nodes report was read.

#include <boost/unordered/unordered_flat_map.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "allocator/cluster.h"
#include "scheduler/live/queue.h"
#include "scheduler/snapshot.h"

namespace larder::scheduler {

// The rates of a job that reads.
struct JobRates {
    double ideal = 0;  // f*, measured or declared
    bool ideal_is_measured = false;
    double predicted = 0;  // bytes per second, by the plan in force
    double granted = 0;    // bandwidth of the remote, bytes per second
    double hit_ratio = 0;
    double unread_bytes = 0;                  // of the current epoch
    std::uint32_t job = PlanInput::kUnknown;  // index in StorageView::state
};

struct CachedOn {
    std::uint32_t node = 0;  // index in StorageView::nodes
    std::uint64_t bytes = 0;
};

struct StorageView {
    std::vector<std::string> nodes;  // nodes that report
    std::vector<DatasetState> datasets;
    std::vector<std::vector<CachedOn>> cached_on;  // by dataset
    Storage storage;
    allocator::ClusterState state;  // that the rest was taken from; its nodes and datasets have the same indices
    boost::unordered_flat_map<std::string, JobRates> jobs;  // by the name its loaders connect with
};

StorageView storage_view(const allocator::Cluster& cluster, std::int64_t now_ns);

// Adds the bytes that nodes report as read to the jobs' records.
void take_reads(const allocator::Cluster& cluster, JobQueue& queue);
// Call it when the jobs first start: bytes that were read under their names before are not their own.
void begin_reads(const allocator::Cluster& cluster, std::span<JobRecord* const> jobs);

}  // namespace larder::scheduler
