#pragma once

// GPUs that are left while some are given out, by type and by tenants' claims: as policies count while they write down
// wishes, and decide() while it chooses from them.

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
    bool none() const;
    // Whether tenants have claims to anything less than all.
    bool has_claims() const { return !claims_left_.empty(); }
    // Of a type, those that its tenant has a claim to still; kAnyGpuType: all that are left.
    std::uint32_t claim_left(const JobSpec& job, std::uint32_t gpu_type) const {
        return claims_left_.empty() ? kAnyGpuType : claims_left_[place(job, gpu_type)];
    }
    // Whether so many of a type are left that the job may be on; with `claims`, of those its tenant has a claim to.
    bool fits(const JobSpec& job, std::uint32_t gpu_type, std::uint32_t gpus, bool claims = true) const {
        return left_[gpu_type] >= gpus && may_run_on(job, gpu_type) && (!claims || claim_left(job, gpu_type) >= gpus);
    }
    // The type a waiting job would go to: the fastest of those that `may(gpu_type)`; kAnyGpuType: none.
    template <typename May>
    std::uint32_t fastest_type(const JobSpec& job, May may) const {
        const std::vector<double>& rates = job.ideal_bytes_per_second;
        std::uint32_t best = kAnyGpuType;
        for (std::uint32_t type = 0; type < left_.size(); ++type) {
            if (may(type) && (best == kAnyGpuType || rates[type] > rates[best])) best = type;
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
        std::uint32_t& claim = claims_left_[place(job, gpu_type)];
        claim -= std::min(claim, gpus);
    }
    void give_back(const JobSpec& job, std::uint32_t gpu_type, std::uint32_t gpus, bool claims) {
        left_[gpu_type] += gpus;
        if (claims && is_limited(job, gpu_type)) claims_left_[place(job, gpu_type)] += gpus;
    }
    // What a running job has.
    void take(const JobState& job) { take(*job.spec, job.gpu_type, job.gpus, !job.opportunistic); }
    // Takes what the want takes of them: its type, its job's own if it runs as wanted, or the one it would go to. The
    // type; kAnyGpuType: there is no room.
    std::uint32_t take(const JobState& job, const Want& want);

private:
    std::size_t place(const JobSpec& job, std::uint32_t gpu_type) const { return job.tenant * left_.size() + gpu_type; }
    bool is_limited(const JobSpec& job, std::uint32_t gpu_type) const {
        return claim_left(job, gpu_type) != kAnyGpuType;
    }

    std::vector<std::uint32_t> left_;         // by type
    std::vector<std::uint32_t> claims_left_;  // as Snapshot::claims
};

}  // namespace larder::scheduler
