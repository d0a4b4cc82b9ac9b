#include "scheduler/pair_rates.h"

#include "base/assert.h"

namespace larder::scheduler {

PairRates::PairRates(std::uint32_t types, std::uint32_t models)
    : models_(models), parts_(std::size_t(types) * models * models) {}

void PairRates::set(std::uint32_t gpu_type, std::uint32_t model, std::uint32_t other, PairParts parts) {
    parts_[index(gpu_type, model, other)] = parts.first;
    parts_[index(gpu_type, other, model)] = parts.second;
}

PairParts PairRates::at(std::uint32_t gpu_type, std::uint32_t model, std::uint32_t other) const {
    return {.first = parts_[index(gpu_type, model, other)], .second = parts_[index(gpu_type, other, model)]};
}

std::size_t PairRates::index(std::uint32_t gpu_type, std::uint32_t model, std::uint32_t other) const {
    const std::size_t found = (std::size_t(gpu_type) * models_ + model) * models_ + other;
    LARDER_ASSERT(model < models_ && other < models_ && found < parts_.size());
    return found;
}

PairParts pair_parts(const PairRates* measured, const JobSpec& first, const JobSpec& second, std::uint32_t gpu_type,
                     std::uint32_t gpus) {
    if (measured != nullptr && !measured->empty() && first.model != kNoModel && second.model != kNoModel) {
        return gpus == 1 ? measured->at(gpu_type, first.model, second.model) : PairParts();
    }
    const bool declared = first.gpu_memory_part > 0 && second.gpu_memory_part > 0;
    if (!declared || first.gpu_memory_part + second.gpu_memory_part > 1) return {};
    return {.first = first.packed_rate, .second = second.packed_rate};
}

}  // namespace larder::scheduler
