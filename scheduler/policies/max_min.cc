#include "scheduler/policies/max_min.h"

#include <algorithm>

namespace larder::scheduler {
namespace {

double max_min_need(const Snapshot& snapshot, const JobState& job, double gpus, std::span<const double> rates) {
    return equal_share_rate(snapshot, rates) * job.spec->weight / gpus;
}

// Terms of "max-min-packed". The ideal rates by type follow them.
enum PackedTerm : std::uint8_t {
    kModelTerm,  // the model's number and 1; 0: it has no measured rates, or may not share
    kNeedTerm,
    kPackedRateTerm,
    kMemoryTerm,
    kFirstIdealTerm,
};

bool may_share(const JobSpec& spec, double gpus) {
    return gpus == 1 && spec.gpus_max == 1;
}

// Returns a rate of a job that shares GPUs, for a rate alone and f* alone.
double shared_rate(double alone, double ideal, double part) {
    const bool storage_limits = alone < ideal * (1 - 1e-9);
    return storage_limits ? std::min(alone, ideal * part) : ideal * part;
}

}  // namespace

double equal_share_rate(const Snapshot& snapshot, std::span<const double> rates) {
    double rate = 0;
    double gpus = 0;
    for (std::size_t type = 0; type < rates.size(); ++type) {
        rate += rates[type] * snapshot.gpu_types[type].gpus;
        gpus += snapshot.gpu_types[type].gpus;
    }
    return rate / gpus;
}

void MaxMin::set_terms(const Snapshot& snapshot, const JobState& job, double gpus, std::span<double> rates,
                       std::span<double> terms) const {
    if (!knows_types_) {
        for (double& rate : rates) rate = rate > 0 ? 1 : 0;
    }
    terms[0] = max_min_need(snapshot, job, gpus, rates);
}

Result<Shares> MaxMin::allocate(const Snapshot&, const Kinds& kinds) {
    std::vector<double> needs;
    needs.reserve(kinds.kinds.size());
    for (const Kind& kind : kinds.kinds) needs.push_back(kind.terms[0]);
    return shares_at_highest_level(kinds, needs);
}

std::size_t MaxMinPacked::terms(const Snapshot& snapshot) const {
    return kFirstIdealTerm + snapshot.gpu_types.size();
}

std::size_t MaxMinPacked::exact_terms() const {
    return kModelTerm + 1;
}

void MaxMinPacked::set_terms(const Snapshot& snapshot, const JobState& job, double gpus, std::span<double> rates,
                             std::span<double> terms) const {
    terms[kNeedTerm] = max_min_need(snapshot, job, gpus, rates);
    if (!may_share(*job.spec, gpus)) return;
    const bool measured = snapshot.pair_rates != nullptr && !snapshot.pair_rates->empty();
    if (measured && job.spec->model != kNoModel) terms[kModelTerm] = job.spec->model + 1.0;
    terms[kPackedRateTerm] = job.spec->packed_rate;
    terms[kMemoryTerm] = job.spec->gpu_memory_part;
    for (std::size_t type = 0; type < rates.size(); ++type) {
        terms[kFirstIdealTerm + type] = rates[type] > 0 ? job.spec->ideal_bytes_per_second[type] : 0;
    }
}

Result<Shares> MaxMinPacked::allocate(const Snapshot& snapshot, const Kinds& kinds) {
    std::vector<double> needs;
    std::vector<JobSpec> examples;  // of each kind, as far as pair_parts() must know it
    needs.reserve(kinds.kinds.size());
    examples.reserve(kinds.kinds.size());
    for (const Kind& kind : kinds.kinds) {
        needs.push_back(kind.terms[kNeedTerm]);
        JobSpec& example = examples.emplace_back();
        if (kind.terms[kModelTerm] > 0) example.model = static_cast<std::uint32_t>(kind.terms[kModelTerm]) - 1;
        example.packed_rate = kind.terms[kPackedRateTerm];
        example.gpu_memory_part = kind.terms[kMemoryTerm];
    }
    std::vector<SharePair> pairs;
    for (std::uint32_t first = 0; first < kinds.kinds.size(); ++first) {
        const Kind& a = kinds.kinds[first];
        for (std::uint32_t second = first; second < kinds.kinds.size(); ++second) {
            const Kind& b = kinds.kinds[second];
            if (first == second && a.jobs == 1) continue;
            for (std::uint32_t type = 0; type < kinds.gpus_by_type.size(); ++type) {
                const double a_ideal = a.terms[kFirstIdealTerm + type];
                const double b_ideal = b.terms[kFirstIdealTerm + type];
                if (a_ideal <= 0 || b_ideal <= 0 || a.rates[type] <= 0 || b.rates[type] <= 0) continue;
                const PairParts parts = pair_parts(snapshot.pair_rates, examples[first], examples[second], type, 1);
                if (!parts.may_share()) continue;
                const SharePair pair{.first = first,
                                     .second = second,
                                     .type = type,
                                     .first_rate = shared_rate(a.rates[type], a_ideal, parts.first),
                                     .second_rate = shared_rate(b.rates[type], b_ideal, parts.second)};
                // Otherwise the two jobs do as much by taking turns.
                if (pair.first_rate / a.rates[type] + pair.second_rate / b.rates[type] > 1) pairs.push_back(pair);
            }
        }
    }
    return shares_at_highest_level(kinds, needs, {}, true, std::move(pairs));
}

}  // namespace larder::scheduler
