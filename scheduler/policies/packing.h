#pragma once

// Pairs jobs that share the same GPUs. Each job of a pair runs at a part of the rate that it has alone. The two parts
// must add up to clearly more than 1, which is the sum if the jobs take turns. A job bound by storage loses less by
// sharing its GPUs. Jobs whose memory does not fit together are never paired, nor are jobs that do not state theirs.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "scheduler/snapshot.h"

namespace larder::scheduler {

class Packing {
public:
    explicit Packing(const Snapshot& snapshot);

    // Returns the expected rate with the GPUs unshared.
    double rate_alone(const JobState& job, std::uint32_t gpu_type, std::uint32_t gpus) const;
    // Returns the job's rate when it shares these GPUs, as a part of its rate alone; 0: it may not share.
    double part(std::uint32_t job, std::uint32_t gpu_type, std::uint32_t gpus) const;
    // Returns the sum of both parts of a sharing pair, by the rates in force; 2 while they are unknown.
    double measured_sum(std::uint32_t host, std::uint32_t guest) const;

    // Adds a job that is to have GPUs of its own, and may be joined there.
    void add_host(std::uint32_t job, std::uint32_t gpu_type, std::uint32_t gpus);
    // Sorts the hosts. Call it once all hosts are added.
    void sort_hosts();
    // Returns the host that the guest should join: its present one if that is still good, else the one that loses
    // least. No other guest may join that host afterwards.
    std::optional<std::uint32_t> take_host(std::uint32_t guest, std::uint32_t gpus,
                                           std::optional<std::uint32_t> present_host);

private:
    struct Host {
        std::uint32_t job = 0;
        std::uint32_t gpu_type = 0;
        std::uint32_t gpus = 0;
        double part = 0;
        bool taken = false;
    };
    // The memory parts of hosts in their queue's order, as a tree: node i has the least of nodes 2i and 2i + 1. The
    // first host with room for a guest is found in a logarithm of the hosts.
    class FreeMemory {
    public:
        void reset(std::span<const double> memory_parts);
        // Returns the index of the first host that uses at most `memory_part`.
        std::optional<std::size_t> first_within(double memory_part) const;
        void remove(std::size_t index);

    private:
        std::vector<double> least_;
        std::size_t leaves_ = 0;
    };
    struct HostQueue {
        std::vector<std::uint32_t> hosts;  // indices, those that lose least first
        FreeMemory memory;                 // of the hosts that are not taken
    };

    void take(HostQueue& queue, std::size_t index);

    const Snapshot& snapshot_;
    std::unordered_set<const JobState*> sharing_;  // hosts that share at present
    std::vector<Host> hosts_;
    // Only jobs with equal keys may share.
    using HostQueueKey = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;
    HostQueueKey queue_key(std::uint32_t job, std::uint32_t gpu_type, std::uint32_t gpus) const;

    std::map<HostQueueKey, HostQueue> queues_;  // by GPUs, type and, where tenants have cells of their own, tenant
};

}  // namespace larder::scheduler
