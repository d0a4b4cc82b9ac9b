#include "scheduler/policies/finish_time_fairness.h"

#include <algorithm>
#include <cmath>

#include "scheduler/policies/makespan.h"
#include "scheduler/policies/max_min.h"

namespace larder::scheduler {
namespace {

// Indices in Kind::terms.
constexpr std::size_t kRemainingBytes = 0;
constexpr std::size_t kElapsedS = 1;
constexpr std::size_t kAloneS = 2;  // total time in a cluster of its own

constexpr double kFairEnough = 1e-6;

// rho takes steps, 128 to each doubling, so that the search ends at the same value wherever it begins.
constexpr int kStepsPerDoubling = 128;
constexpr int kStepMin = -20 * kStepsPerDoubling;
constexpr int kStepMax = 40 * kStepsPerDoubling;

double rho_at(int step) {
    const int doublings = (step - kStepMin) / kStepsPerDoubling;
    const double rest = (step - kStepMin) % kStepsPerDoubling;
    return std::ldexp(1 + rest / kStepsPerDoubling, doublings + kStepMin / kStepsPerDoubling);
}

}  // namespace

void FinishTimeFairness::prepare(const Snapshot& snapshot) {
    longest_bytes_ = longest_remaining_bytes(snapshot);
    weight_sum_ = 0;
    for (const JobState* const job : snapshot.jobs) weight_sum_ += job->spec->weight;
}

void FinishTimeFairness::set_terms(const Snapshot& snapshot, const JobState& job, double gpus, std::span<double> rates,
                                   std::span<double> terms) const {
    const double part = std::min(1.0, job.spec->weight / weight_sum_ * snapshot.gpus() / gpus);
    const bool known = job.remaining_bytes != kNever;
    const double left = known ? std::max(1.0, job.remaining_bytes) : longest_bytes_;
    const double total = job.spec->total_bytes != kNever ? std::max(left, job.spec->total_bytes) : left;
    terms[kRemainingBytes] = left;
    terms[kElapsedS] = snapshot.now_s - job.spec->submit_s;
    terms[kAloneS] = total / (equal_share_rate(snapshot, rates) * part);
}

Result<Shares> FinishTimeFairness::allocate(const Snapshot&, const Kinds& kinds) {
    std::vector<double> needs(kinds.kinds.size());
    const auto shares_at = [&](double rho, bool spreads_rest) {
        for (std::size_t k = 0; k < needs.size(); ++k) {
            const Kind& kind = kinds.kinds[k];
            const double time_s = rho * kind.terms[kAloneS] - kind.terms[kElapsedS];
            const double fastest = std::ranges::max(kind.rates);
            needs[k] = time_s * fastest <= kind.terms[kRemainingBytes] ? fastest : kind.terms[kRemainingBytes] / time_s;
        }
        return shares_at_highest_level(kinds, needs, {}, spreads_rest);
    };
    const auto reached = [](const Result<Shares>& shares) { return shares && shares->level >= 1 - kFairEnough; };

    auto all_the_time = shares_at(0, true);
    if (!all_the_time || reached(all_the_time)) return all_the_time;
    // Find the lowest step that can be reached, starting at the last result.
    const auto reaches = [&](int step) -> Result<bool> {
        const auto shares = shares_at(rho_at(step), false);
        if (!shares) return std::unexpected(shares.error());
        return reached(shares);
    };
    int low = kStepMin;
    int high = kStepMax;
    int stride = 4;
    for (int step = last_step_; high - low > 1;) {
        const auto can = reaches(step);
        if (!can) return std::unexpected(can.error());
        (*can ? high : low) = step;
        const int next = *can ? step - stride : step + stride;
        stride = std::min(4 * stride, kStepMax - kStepMin);
        step = next > low && next < high ? next : low + (high - low) / 2;
    }
    last_step_ = high;
    return shares_at(rho_at(high), true);
}

}  // namespace larder::scheduler
