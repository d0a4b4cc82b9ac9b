#pragma once

// The rates of two jobs that share the same GPUs. Measured rates come from a table of models (Gavel, OSDI '20, measures
// two jobs on one GPU). Jobs without measured rates share GPUs as they declare: JobSpec::packed_rate and
// gpu_memory_part.

#include <cstdint>
#include <vector>

#include "scheduler/job_spec.h"

namespace larder::scheduler {

// The part of f* that each of two jobs keeps beside the other; 0: they may not share. A measured part may exceed 1.
struct PairParts {
    double first = 0;
    double second = 0;

    bool may_share() const { return first > 0 && second > 0; }
};

// A table by GPU type and two models, each of them on one GPU. A pair that is not set may not share.
class PairRates {
public:
    PairRates() = default;
    PairRates(std::uint32_t types, std::uint32_t models);

    bool empty() const { return parts_.empty(); }
    // Sets both orders of the pair.
    void set(std::uint32_t gpu_type, std::uint32_t model, std::uint32_t other, PairParts parts);
    PairParts at(std::uint32_t gpu_type, std::uint32_t model, std::uint32_t other) const;

private:
    std::size_t index(std::uint32_t gpu_type, std::uint32_t model, std::uint32_t other) const;

    std::uint32_t models_ = 0;
    std::vector<double> parts_;  // of the first model of a pair
};

// Returns what is left to two jobs that share `gpus` GPUs of the type: as measured for jobs of one GPU whose models
// `measured` has, else as declared. `measured` may be null.
PairParts shared_parts(const PairRates* measured, const JobSpec& first, const JobSpec& second, std::uint32_t gpu_type,
                       std::uint32_t gpus);
// The same, but 0 for two jobs without measured rates whose memory does not fit, or is unknown.
PairParts pair_parts(const PairRates* measured, const JobSpec& first, const JobSpec& second, std::uint32_t gpu_type,
                     std::uint32_t gpus);

}  // namespace larder::scheduler
