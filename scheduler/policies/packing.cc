#include "scheduler/policies/packing.h"

#include <algorithm>
#include <bit>

namespace larder::scheduler {
namespace {

// Least sum of both jobs' rates, each as a part of its rate alone. Below it, taking turns is as fast as packing.
constexpr double kCombinedRateMin = 1.05;
constexpr double kNoHost = 2;  // above every part of a GPU's memory

}  // namespace

void Packing::FreeMemory::reset(std::span<const double> memory_parts) {
    leaves_ = std::bit_ceil(std::max<std::size_t>(memory_parts.size(), 1));
    least_.assign(2 * leaves_, kNoHost);
    std::ranges::copy(memory_parts, least_.begin() + static_cast<std::ptrdiff_t>(leaves_));
    for (std::size_t i = leaves_; --i > 0;) least_[i] = std::min(least_[2 * i], least_[2 * i + 1]);
}

std::optional<std::size_t> Packing::FreeMemory::first_within(double memory_part) const {
    if (least_[1] > memory_part) return std::nullopt;
    std::size_t i = 1;
    while (i < leaves_) i = least_[2 * i] <= memory_part ? 2 * i : 2 * i + 1;
    return i - leaves_;
}

void Packing::FreeMemory::remove(std::size_t index) {
    least_[leaves_ + index] = kNoHost;
    for (std::size_t i = (leaves_ + index) / 2; i > 0; i /= 2) least_[i] = std::min(least_[2 * i], least_[2 * i + 1]);
}

Packing::Packing(const Snapshot& snapshot) : snapshot_(snapshot) {
    for (const JobState* const job : snapshot.jobs) {
        if (job->running && job->packed_with != nullptr) sharing_.insert(job->packed_with);
    }
}

double Packing::rate_alone(const JobState& job, std::uint32_t gpu_type, std::uint32_t gpus) const {
    if (!job.running || (job.packed_with == nullptr && !sharing_.contains(&job))) {
        return expected_rate(snapshot_, job, gpu_type, gpus);
    }
    JobState alone = job;
    alone.running = false;
    return expected_rate(snapshot_, alone, gpu_type, gpus);
}

double Packing::part(std::uint32_t job, std::uint32_t gpu_type, std::uint32_t gpus) const {
    const JobState& state = *snapshot_.jobs[job];
    if (state.spec->packed_rate <= 0 || state.spec->gpu_memory_part <= 0) return 0;
    const double alone = rate_alone(state, gpu_type, gpus);
    if (alone <= 0) return 0;
    return std::min(1.0, state.spec->packed_rate * ideal_rate(*state.spec, gpu_type, gpus) / alone);
}

double Packing::measured_sum(std::uint32_t host, std::uint32_t guest) const {
    const JobState& host_state = *snapshot_.jobs[host];
    double sum = 0;
    for (const std::uint32_t j : {host, guest}) {
        const JobState& job = *snapshot_.jobs[j];
        if (job.rate_bytes_per_second <= 0) return 2;  // unknown: assume no loss
        sum += job.rate_bytes_per_second / rate_alone(job, host_state.gpu_type, host_state.gpus);
    }
    return sum;
}

Packing::HostQueueKey Packing::queue_key(std::uint32_t job, std::uint32_t gpu_type, std::uint32_t gpus) const {
    return {gpus, gpu_type, snapshot_.claims.empty() ? 0 : snapshot_.jobs[job]->spec->tenant};
}

void Packing::add_host(std::uint32_t job, std::uint32_t gpu_type, std::uint32_t gpus) {
    const double host_part = part(job, gpu_type, gpus);
    if (host_part <= 0) return;
    queues_[queue_key(job, gpu_type, gpus)].hosts.push_back(static_cast<std::uint32_t>(hosts_.size()));
    hosts_.push_back({.job = job, .gpu_type = gpu_type, .gpus = gpus, .part = host_part});
}

void Packing::sort_hosts() {
    for (auto& [key, queue] : queues_) {
        std::ranges::stable_sort(queue.hosts, std::ranges::greater{}, [&](std::uint32_t h) { return hosts_[h].part; });
        std::vector<double> memory_parts;
        memory_parts.reserve(queue.hosts.size());
        for (const std::uint32_t h : queue.hosts) {
            memory_parts.push_back(snapshot_.jobs[hosts_[h].job]->spec->gpu_memory_part);
        }
        queue.memory.reset(memory_parts);
    }
}

void Packing::take(HostQueue& queue, std::size_t index) {
    hosts_[queue.hosts[index]].taken = true;
    queue.memory.remove(index);
}

std::optional<std::uint32_t> Packing::take_host(std::uint32_t guest, std::uint32_t gpus,
                                                std::optional<std::uint32_t> present_host) {
    const JobSpec& spec = *snapshot_.jobs[guest]->spec;
    const double memory_part_left = 1 - spec.gpu_memory_part;
    HostQueue* best_queue = nullptr;
    std::size_t best = 0;
    double most = kCombinedRateMin;
    for (std::uint32_t type = 0; type < snapshot_.gpu_types.size(); ++type) {
        const auto found = queues_.find(queue_key(guest, type, gpus));
        if (found == queues_.end() || (spec.gpu_type != kAnyGpuType && spec.gpu_type != type)) continue;
        const double guest_part = part(guest, type, gpus);
        if (guest_part <= 0) continue;
        HostQueue& queue = found->second;
        if (present_host) {
            const auto stays =
                std::ranges::find(queue.hosts, *present_host, [&](std::uint32_t h) { return hosts_[h].job; });
            if (stays != queue.hosts.end() && !hosts_[*stays].taken &&
                snapshot_.jobs[*present_host]->spec->gpu_memory_part <= memory_part_left &&
                hosts_[*stays].part + guest_part > kCombinedRateMin) {
                // The measured sum may be lower than the expected one.
                if (measured_sum(*present_host, guest) < 1) return std::nullopt;
                take(queue, static_cast<std::size_t>(stays - queue.hosts.begin()));
                return present_host;
            }
        }
        const auto first = queue.memory.first_within(memory_part_left);
        if (!first || hosts_[queue.hosts[*first]].part + guest_part <= most) continue;
        best_queue = &queue;
        best = *first;
        most = hosts_[queue.hosts[*first]].part + guest_part;
    }
    if (best_queue == nullptr) return std::nullopt;
    take(*best_queue, best);
    return hosts_[best_queue->hosts[best]].job;
}

}  // namespace larder::scheduler
