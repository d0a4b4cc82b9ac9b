#pragma once

// Counts the GPUs left, by type and by tenants' claims, while GPUs are given out. Policies use it when they write down
// wishes, decide() when it chooses among them.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/policy.h"

namespace larder::scheduler {

class Room {
public:
    // `claims`: as in Snapshot.
    Room(std::span<const GpuTypeState> gpu_types, std::span<const std::uint32_t> claims);
    explicit Room(const Snapshot& snapshot) : Room(snapshot.gpu_types, snapshot.claims) {}

    std::uint32_t left(std::uint32_t gpu_type) const { return left_[gpu_type]; }
    std::span<std::uint32_t> left() { return left_; }
    bool is_empty() const;
    // True if some tenant has a claim to less than all GPUs.
    bool has_claims() const { return !claims_left_.empty(); }
    // Returns the rest of the claim of the job's tenant to a type; kAllGpus: all GPUs left.
    std::uint32_t claim_left(const JobSpec& job, std::uint32_t gpu_type) const {
        return claims_left_.empty() ? kAllGpus : claims_left_[claim_index(job, gpu_type)];
    }
    // True if the job may run on the type and `gpus` GPUs are left; with `claims`, also within its tenant's claim.
    bool fits(const JobSpec& job, std::uint32_t gpu_type, std::uint32_t gpus, bool claims = true) const {
        return left_[gpu_type] >= gpus && may_run_on(job, gpu_type) && (!claims || claim_left(job, gpu_type) >= gpus);
    }
    // Returns the type a waiting job would get: its fastest for which `may(gpu_type)` is true; kNoGpuType: none.
    template <typename May>
    std::uint32_t fastest_type(const JobSpec& job, May may) const {
        const std::vector<double>& rates = job.ideal_bytes_per_second;
        std::uint32_t best = kNoGpuType;
        for (std::uint32_t type = 0; type < left_.size(); ++type) {
            if (may(type) && (best == kNoGpuType || rates[type] > rates[best])) best = type;
        }
        return best;
    }
    std::uint32_t type_for(const JobSpec& job, std::uint32_t gpus) const {
        return fastest_type(job, [&](std::uint32_t type) { return fits(job, type, gpus); });
    }

    void take(const JobSpec& job, std::uint32_t gpu_type, std::uint32_t gpus, bool claims = true) {
        left_[gpu_type] -= std::min(left_[gpu_type], gpus);
        if (claims) take_claim(job, gpu_type, gpus);
    }
    void take_claim(const JobSpec& job, std::uint32_t gpu_type, std::uint32_t gpus) {
        if (!is_limited(job, gpu_type)) return;
        std::uint32_t& claim = claims_left_[claim_index(job, gpu_type)];
        claim -= std::min(claim, gpus);
    }
    void release(const JobSpec& job, std::uint32_t gpu_type, std::uint32_t gpus, bool claims) {
        left_[gpu_type] += gpus;
        if (claims && is_limited(job, gpu_type)) claims_left_[claim_index(job, gpu_type)] += gpus;
    }
    // Takes the GPUs of a running job.
    void take(const JobState& job) { take(*job.spec, job.gpu_type, job.gpus, !job.opportunistic); }
    // Takes the GPUs of a wish, of the wished type. If any type will do: of the job's own type if it runs as wanted,
    // else of the type it would get. Returns the type; kNoGpuType: there is no room, and nothing was taken.
    std::uint32_t take(const JobState& job, const Want& want);

private:
    std::size_t claim_index(const JobSpec& job, std::uint32_t gpu_type) const {
        return job.tenant * left_.size() + gpu_type;
    }
    bool is_limited(const JobSpec& job, std::uint32_t gpu_type) const { return claim_left(job, gpu_type) != kAllGpus; }

    std::vector<std::uint32_t> left_;         // by type
    std::vector<std::uint32_t> claims_left_;  // laid out as Snapshot::claims
};

}  // namespace larder::scheduler
