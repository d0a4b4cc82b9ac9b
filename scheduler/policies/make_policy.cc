#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "allocator/assign.h"
#include "base/nearest_name.h"
#include "scheduler/policies/astraea.h"
#include "scheduler/policies/chronus.h"
#include "scheduler/policies/edf.h"
#include "scheduler/policies/fifo.h"
#include "scheduler/policies/finish_time_fairness.h"
#include "scheduler/policies/gandiva.h"
#include "scheduler/policies/las.h"
#include "scheduler/policies/makespan.h"
#include "scheduler/policies/max_min.h"
#include "scheduler/policies/shortest.h"
#include "scheduler/policies/tenant_fifo.h"
#include "scheduler/policies/water_filling.h"
#include "scheduler/policy.h"

namespace larder::scheduler {
namespace {

struct Maker {
    std::string_view name;
    std::unique_ptr<Policy> (*make)(const PolicyOptions& options);
    allocator::ObjectiveKind objective = allocator::ObjectiveKind::efficiency;
};

template <typename T, auto... kArguments>
std::unique_ptr<Policy> make_plain(const PolicyOptions&) {
    return std::make_unique<T>(kArguments...);
}

template <typename T, auto... kArguments>
std::unique_ptr<Policy> make_with_options(const PolicyOptions& options) {
    return std::make_unique<T>(options, kArguments...);
}

constexpr auto kFair = allocator::ObjectiveKind::max_min;
constexpr auto kThroughput = allocator::ObjectiveKind::throughput;
constexpr std::array kMakers{
    Maker{"fifo", make_plain<Fifo, false>, kThroughput},
    Maker{"fifo-backfill", make_plain<Fifo, true>},
    Maker{"tenant-fifo", make_plain<TenantFifo>},
    Maker{"sjf", make_plain<Shortest, false>},
    Maker{"srtf", make_plain<Shortest, true>},
    Maker{"las", make_with_options<Las>},
    Maker{"max-min", make_with_options<MaxMin, true>, kFair},
    Maker{"max-min-agnostic", make_with_options<MaxMin, false>, kFair},
    Maker{"max-min-packed", make_with_options<MaxMinPacked>, kFair},
    Maker{"makespan", make_with_options<Makespan>},
    Maker{"finish-time-fairness", make_with_options<FinishTimeFairness>, kFair},
    Maker{"water-filling", make_with_options<WaterFilling>, kFair},
    Maker{"astraea", make_with_options<Astraea>, kFair},
    Maker{"edf", make_plain<Edf>},
    Maker{"chronus", make_with_options<Chronus>},
    Maker{"gandiva", make_with_options<Gandiva>},
};

Result<void> check(const PolicyOptions& options) {
    const auto refuse = [](const char* what) { return fail(ErrorCode::invalid_argument, what); };
    const auto positive = [](double value) { return value > 0 && value < kNever; };
    const std::vector<double>& queues = options.queue_gpu_s;
    if (queues.empty() || !std::ranges::all_of(queues, positive) ||
        std::ranges::adjacent_find(queues, std::ranges::greater_equal{}) != queues.end()) {
        return refuse("queues: GPU-seconds above 0, one or more, each more than the previous");
    }
    if (!positive(options.promote_after)) return refuse("promote_after: a factor above 0");
    if (!positive(options.round_s)) return refuse("round: seconds above 0");
    if (!positive(options.interval_s)) return refuse("interval: seconds above 0");
    if (!positive(options.lease_s)) return refuse("lease: seconds above 0");
    if (!positive(options.starve_s)) return refuse("starve: seconds above 0");
    if (options.window_intervals == 0) return refuse("window_intervals: 1 or more");
    return {};
}

}  // namespace

Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const PolicyOptions& options) {
    if (auto valid = check(options); !valid) return std::unexpected(valid.error().within("policy options"));
    for (const Maker& maker : kMakers) {
        if (maker.name == name) return maker.make(options);
    }
    std::string listed;
    std::vector<std::string> known;
    for (const std::string_view one : policy_names()) {
        listed += (listed.empty() ? "" : ", ") + std::string(one);
        known.emplace_back(one);
    }
    const auto nearest = nearest_name(name, known);
    return fail(ErrorCode::invalid_argument, "policy \"" + std::string(name) + "\" is unknown; " +
                                                 (nearest ? "did you mean " + *nearest + "? Known" : "known") + ": " +
                                                 listed);
}

allocator::ObjectiveKind objective_of(std::string_view policy) {
    const auto maker = std::ranges::find(kMakers, policy, &Maker::name);
    return maker == kMakers.end() ? kFair : maker->objective;
}

std::vector<std::string_view> policy_names() {
    std::vector<std::string_view> names;
    names.reserve(kMakers.size());
    for (const Maker& maker : kMakers) names.push_back(maker.name);
    return names;
}

}  // namespace larder::scheduler
