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

namespace {

bool is_measured(const PairRates* measured, const JobSpec& first, const JobSpec& second, std::uint32_t gpus) {
    return measured != nullptr && !measured->empty() && gpus == 1 && first.model != kNoModel &&
           second.model != kNoModel;
}

}  // namespace

PairParts shared_parts(const PairRates* measured, const JobSpec& first, const JobSpec& second, std::uint32_t gpu_type,
                       std::uint32_t gpus) {
    if (is_measured(measured, first, second, gpus)) return measured->at(gpu_type, first.model, second.model);
    return {.first = first.packed_rate, .second = second.packed_rate};
}

PairParts pair_parts(const PairRates* measured, const JobSpec& first, const JobSpec& second, std::uint32_t gpu_type,
                     std::uint32_t gpus) {
    const bool fits =
        first.gpu_memory_part > 0 && second.gpu_memory_part > 0 && first.gpu_memory_part + second.gpu_memory_part <= 1;
    if (!fits && !is_measured(measured, first, second, gpus)) return {};
    return shared_parts(measured, first, second, gpu_type, gpus);
}

}  // namespace larder::scheduler
