#include "scheduler/policies/wants.h"

#include <algorithm>
#include <cmath>

namespace larder::scheduler {

std::uint32_t gpus_asked(const Snapshot& snapshot, const JobSpec& job) {
    std::uint32_t most = 0;
    for (std::uint32_t type = 0; type < snapshot.gpu_types.size(); ++type) {
        const bool may = job.ideal_bytes_per_second[type] > 0 && (job.gpu_type == kAnyGpuType || job.gpu_type == type);
        if (may) most = std::max(most, snapshot.gpu_types[type].gpus);
    }
    return most >= job.gpus_min ? std::min(job.gpus, most) : job.gpus;
}

Want want_as_it_is(const Snapshot& snapshot, std::uint32_t job) {
    const JobState& state = *snapshot.jobs[job];
    Want want;
    want.job = job;
    want.gpus = state.running ? state.gpus : gpus_asked(snapshot, *state.spec);
    want.gpu_type = state.spec->gpu_type;
    return want;
}

Room::Room(const Snapshot& snapshot) : claims_left_(snapshot.claims.begin(), snapshot.claims.end()) {
    for (const GpuTypeState& type : snapshot.gpu_types) left_.push_back(type.gpus);
}

std::uint32_t Room::type_for(const JobSpec& job, std::uint32_t gpus) const {
    std::uint32_t best = kAnyGpuType;
    for (std::uint32_t type = 0; type < left_.size(); ++type) {
        if (left_[type] < gpus || claim_left(job, type) < gpus || job.ideal_bytes_per_second[type] <= 0) continue;
        if (job.gpu_type != kAnyGpuType && job.gpu_type != type) continue;
        if (best == kAnyGpuType || job.ideal_bytes_per_second[type] > job.ideal_bytes_per_second[best]) best = type;
    }
    return best;
}

std::uint32_t Room::claim_left(const JobSpec& job, std::uint32_t gpu_type) const {
    return claims_left_.empty() ? kAnyGpuType : claims_left_[job.tenant * left_.size() + gpu_type];
}

void Room::take(const JobSpec& job, std::uint32_t gpu_type, std::uint32_t gpus) {
    left_[gpu_type] -= std::min(left_[gpu_type], gpus);
    take_claim(job, gpu_type, gpus);
}

void Room::take_claim(const JobSpec& job, std::uint32_t gpu_type, std::uint32_t gpus) {
    const std::uint32_t claims = claim_left(job, gpu_type);
    if (claims != kAnyGpuType) claims_left_[job.tenant * left_.size() + gpu_type] -= std::min(claims, gpus);
}

void Room::take(const JobState& job) {
    if (job.opportunistic) {
        left_[job.gpu_type] -= std::min(left_[job.gpu_type], job.gpus);
    } else {
        take(*job.spec, job.gpu_type, job.gpus);
    }
}

std::uint32_t Room::take(const JobState& job, const Want& want) {
    std::uint32_t type = want.gpu_type;
    if (type == kAnyGpuType) {
        const bool stays = job.running && job.gpus == want.gpus && left_[job.gpu_type] >= want.gpus &&
                           claim_left(*job.spec, job.gpu_type) >= want.gpus;
        type = stays ? job.gpu_type : type_for(*job.spec, want.gpus);
    }
    if (type == kAnyGpuType || left_[type] < want.gpus || claim_left(*job.spec, type) < want.gpus) return kAnyGpuType;
    take(*job.spec, type, want.gpus);
    return type;
}

double remaining_with_restart_s(const Snapshot& snapshot, const JobState& job) {
    const double remaining_s = expected_remaining_s(snapshot, job);
    const bool starts_again = !job.running && job.first_started_s != kNever;
    return starts_again ? remaining_s + job.spec->restart_s : remaining_s;
}

double period_end_s(double now_s, double period_s) {
    // A decision asked for at a boundary may come a rounding before it.
    return (std::floor(now_s / period_s + 1e-9) + 1) * period_s;
}

}  // namespace larder::scheduler
