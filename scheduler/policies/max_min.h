#pragma once

// Max-min fairness (Gavel, OSDI '20, section 4.1): the smallest of all jobs' rates is as high as possible, each divided
// by the rate of an equal share of every GPU type and by the job's weight; a gang's rate counts by its GPUs. "max-min"
// knows how fast each job is on each type. "max-min-agnostic", its baseline, treats all types as equal.

#include "scheduler/policies/fair.h"

namespace larder::scheduler {

// Returns a job's rate with an equal share of every type: the mean of its rates, weighted by the GPUs of each type.
double equal_share_rate(const Snapshot& snapshot, std::span<const double> rates);

class MaxMin final : public Fair {
public:
    MaxMin(const PolicyOptions& options, bool knows_types) : Fair(options.round_s), knows_types_(knows_types) {}
    std::string_view name() const override { return knows_types_ ? "max-min" : "max-min-agnostic"; }

private:
    void set_terms(const Snapshot& snapshot, const JobState& job, double gpus, std::span<double> rates,
                   std::span<double> terms) const override;
    Result<Shares> allocate(const Snapshot& snapshot, const Kinds& kinds) override;

    bool knows_types_;
};

// "max-min-packed": as "max-min", but two rigid jobs of one GPU each may share a GPU (Gavel, section 4.4). The shares
// say how many GPUs which kinds of jobs share.
class MaxMinPacked final : public Fair {
public:
    explicit MaxMinPacked(const PolicyOptions& options) : Fair(options.round_s, kKindsMax) {}
    std::string_view name() const override { return "max-min-packed"; }

private:
    static constexpr std::size_t kKindsMax = 64;  // small, because the linear program has a column for each pair

    std::size_t terms(const Snapshot& snapshot) const override;
    void set_terms(const Snapshot& snapshot, const JobState& job, double gpus, std::span<double> rates,
                   std::span<double> terms) const override;
    std::size_t exact_terms() const override;
    Result<Shares> allocate(const Snapshot& snapshot, const Kinds& kinds) override;
};

}  // namespace larder::scheduler
