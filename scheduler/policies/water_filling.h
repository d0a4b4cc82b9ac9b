#pragma once

// Hierarchical fairness by water filling (Gavel, OSDI '20, section 4.3): tenants share by their weights at each level
// of the hierarchy, and the jobs of a tenant share by theirs. The rates of all jobs are raised together. Shares that a
// job or tenant cannot use go to the others of its tenant first. With one type of GPU this is a division from the root
// down; with several types it is a linear program for each level at which some job can rise no further.

#include "scheduler/policies/fair.h"

namespace larder::scheduler {

class WaterFilling final : public Fair {
public:
    explicit WaterFilling(const PolicyOptions& options) : Fair(options.round_s, kKindsMax) {}
    std::string_view name() const override { return "water-filling"; }

private:
    static constexpr std::size_t kKindsMax = 128;  // small, because one decision solves many linear programs

    void set_terms(const Snapshot& snapshot, const JobState& job, double gpus, std::span<double> rates,
                   std::span<double> terms) const override;
    std::size_t exact_terms() const override { return 1; }
    Result<Shares> allocate(const Snapshot& snapshot, const Kinds& kinds) override;
};

}  // namespace larder::scheduler
