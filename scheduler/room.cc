#include "scheduler/room.h"

namespace larder::scheduler {

Room::Room(std::span<const GpuTypeState> gpu_types, std::span<const std::uint32_t> claims)
    : claims_left_(claims.begin(), claims.end()) {
    for (const GpuTypeState& type : gpu_types) left_.push_back(type.gpus);
}

bool Room::is_empty() const {
    return std::ranges::all_of(left_, [](std::uint32_t gpus) { return gpus == 0; });
}

std::uint32_t Room::take(const JobState& job, const Want& want) {
    const auto enough = [&](std::uint32_t type) {
        return left_[type] >= want.gpus && claim_left(*job.spec, type) >= want.gpus;
    };
    std::uint32_t type = want.gpu_type;
    if (type == kAnyGpuType) {
        const bool stays = job.running && job.gpus == want.gpus && enough(job.gpu_type);
        type = stays ? job.gpu_type : type_for(*job.spec, want.gpus);
    }
    if (type == kNoGpuType || !enough(type)) return kNoGpuType;
    take(*job.spec, type, want.gpus);
    return type;
}

}  // namespace larder::scheduler
