#pragma once

// Two jobs on the same GPUs: who goes with whom. What each then makes is a part of what it makes alone; together they
// have to make clearly more than the one whole that they would make by taking turns. A job that storage binds loses
// less by sharing its GPUs.

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "scheduler/snapshot.h"

namespace larder::scheduler {

class Packing {
public:
    explicit Packing(const Snapshot& snapshot);

    // Of the rate that it makes alone, what it would make sharing so many GPUs of the type; 0: it may not share.
    double part(std::uint32_t job, std::uint32_t gpu_type, std::uint32_t gpus) const;
    // What a pair that shares GPUs at present makes together, by the rates in force; 2 while they are not known.
    double made_now(std::uint32_t host, std::uint32_t guest) const;

    // A job that is to have GPUs of its own, and may be joined there.
    void add_host(std::uint32_t job, std::uint32_t gpu_type, std::uint32_t gpus);
    // Has to be called when all hosts are there.
    void line_up();
    // Who the guest should join: where it is if that is still good, else whoever loses least by it. Nobody else may
    // join that one then.
    std::optional<std::uint32_t> take_host(std::uint32_t guest, std::uint32_t gpus, std::optional<std::uint32_t> with);

private:
    struct Host {
        std::uint32_t job = 0;
        std::uint32_t gpu_type = 0;
        std::uint32_t gpus = 0;
        double part = 0;
        bool taken = false;
    };
    struct Line {
        std::vector<std::uint32_t> hosts;  // indices, those that lose least first
        std::size_t next = 0;
    };

    // As it would be expected with the GPUs for itself.
    double rate_alone(const JobState& job, std::uint32_t gpu_type, std::uint32_t gpus) const;

    const Snapshot& snapshot_;
    std::unordered_set<const JobState*> sharing_;  // at present, as hosts
    std::vector<Host> hosts_;
    // Who may share at all.
    using LineKey = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;
    LineKey line_key(std::uint32_t job, std::uint32_t gpu_type, std::uint32_t gpus) const;

    std::map<LineKey, Line> lines_;  // by GPUs, type and, where tenants have cells of their own, tenant
};

}  // namespace larder::scheduler
