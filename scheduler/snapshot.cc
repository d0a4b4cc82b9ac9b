#include "scheduler/snapshot.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "allocator/model.h"

namespace larder::scheduler {

double age_weight(double age_s) {
    const double halvings = std::min(std::max(0.0, age_s) / kHalfLifeS, 1000.0);
    const double whole = std::floor(halvings);
    const double power = -(halvings - whole) * std::numbers::ln2;
    double sum = 1;
    for (int n = 14; n > 0; --n) sum = 1 + sum * power / n;  // the series of e^power; power > -0.7
    return std::ldexp(sum, -static_cast<int>(whole));
}

double full_recent_run_s(double seconds) {
    return (1 - age_weight(seconds)) * kHalfLifeS / std::numbers::ln2;
}

void add_run(JobState& job, RunTime& time) {
    const double to_s = time.stretch().to_s;
    const double seconds = to_s - time.stretch().from_s;
    job.attained_gpu_s += seconds * job.gpus;
    job.gpu_time.add(time.stretch(), job.gpus);
    job.ran_s += seconds;
    const std::size_t types = std::max<std::size_t>(job.gpu_type + 1, job.spec->ideal_bytes_per_second.size());
    job.ran_s_by_type.resize(types);
    job.recent_run_s_by_type.resize(types);
    job.ran_s_by_type[job.gpu_type] += seconds;
    const double fade = time.fade_since(job.recent_run_at_s);
    for (double& recent_run : job.recent_run_s_by_type) recent_run *= fade;
    job.recent_run_s_by_type[job.gpu_type] += time.full_recent_run_s();
    job.recent_run_at_s = to_s;
}

double recent_run_s(const JobState& job, std::uint32_t gpu_type, double now_s) {
    if (gpu_type >= job.recent_run_s_by_type.size()) return 0;
    return job.recent_run_s_by_type[gpu_type] * age_weight(now_s - job.recent_run_at_s);
}

double time_share(const JobState& job, double now_s) {
    // Added to the time that it ran and to the time that it could have run, so that a job that has just started has a
    // share of 1, and no job has 0.
    constexpr double kLeast_s = 1;
    double ran_s = kLeast_s;
    for (std::uint32_t type = 0; type < job.recent_run_s_by_type.size(); ++type)
        ran_s += recent_run_s(job, type, now_s);
    const double possible_s = kLeast_s + full_recent_run_s(now_s - std::min(now_s, job.first_started_s));
    return std::min(1.0, ran_s / possible_s);
}

void note_time_share(JobState& job, double now_s) {
    constexpr double kChangeMin = 0.25;
    const double share = time_share(job, now_s);
    if (std::abs(share - job.time_share) > kChangeMin * job.time_share) job.time_share = share;
}

bool holds_lease(const JobState& job, double now_s) {
    return job.running && job.lease_until_s > now_s + 1e-3;
}

std::uint32_t Snapshot::gpus() const {
    std::uint32_t all = 0;
    for (const GpuTypeState& type : gpu_types) all += type.gpus;
    return all;
}

namespace {

// Returns f = min(f*, b / (1 - h)) with an equal share (by GPUs) of cache and bandwidth.
double rate_with_equal_share(const Snapshot& snapshot, const JobState& job, std::uint32_t gpu_type,
                             std::uint32_t gpus) {
    const JobSpec& spec = *job.spec;
    const double ideal = ideal_rate(spec, gpu_type, gpus);
    if (!snapshot.storage_aware || spec.dataset == kNoDataset || ideal <= 0) return ideal;
    const DatasetState& dataset = snapshot.datasets[spec.dataset];
    const double part = std::min(1.0, static_cast<double>(gpus) / std::max(1U, snapshot.gpus()));
    // A job that ends with this epoch gains nothing from cache that has yet to be filled.
    const bool single_pass = job.remaining_bytes <= dataset.size_bytes;
    const double share = single_pass ? 0 : snapshot.storage.cache_bytes * part;
    const double hits = allocator::hit_ratio(std::max(dataset.cached_bytes, share), dataset.size_bytes);
    return allocator::predicted_rate(ideal, snapshot.storage.remote_bytes_per_second * part, hits);
}

}  // namespace

double expected_rate(const Snapshot& snapshot, const JobState& job, std::uint32_t gpu_type, std::uint32_t gpus) {
    const JobSpec& spec = *job.spec;
    const bool plan_is_for_these_gpus = job.running && job.gpu_type == gpu_type && job.gpus == gpus;
    if (snapshot.storage_aware && spec.dataset != kNoDataset && plan_is_for_these_gpus &&
        job.rate_bytes_per_second > 0) {
        return std::min(ideal_rate(spec, gpu_type, gpus), job.rate_bytes_per_second);
    }
    return rate_with_equal_share(snapshot, job, gpu_type, gpus);
}

double expected_rate_far(const Snapshot& snapshot, const JobState& job, std::uint32_t gpu_type, std::uint32_t gpus) {
    const double rate = expected_rate(snapshot, job, gpu_type, gpus);
    if (!snapshot.storage_aware || job.spec->dataset == kNoDataset) return rate;
    const double part = std::min(1.0, static_cast<double>(gpus) / std::max(1U, snapshot.gpus()));
    const Storage& storage = snapshot.storage;
    const double link = storage.own_caches ? std::min(storage.nic_bytes_per_second, storage.remote_bytes_per_second)
                                           : storage.nic_bytes_per_second;
    return std::min(rate, link * part);
}

double expected_rate(const Snapshot& snapshot, const JobState& job) {
    if (job.running) return expected_rate(snapshot, job, job.gpu_type, job.gpus);
    const std::uint32_t type = fastest_type(snapshot, job);
    return type == kNoGpuType ? 0 : expected_rate(snapshot, job, type, job.spec->gpus);
}

double expected_remaining_s(const Snapshot& snapshot, const JobState& job) {
    const double rate = expected_rate(snapshot, job);
    return rate <= 0 ? kNever : job.remaining_bytes / rate;
}

double remaining_if_waiting_s(const Snapshot& snapshot, const JobState& job) {
    const std::uint32_t type = fastest_type(snapshot, job);
    const double rate = type == kNoGpuType ? 0 : rate_with_equal_share(snapshot, job, type, job.spec->gpus);
    return rate <= 0 ? kNever : job.remaining_bytes / rate;
}

std::uint32_t fastest_type(const Snapshot& snapshot, const JobState& job) {
    const JobSpec& spec = *job.spec;
    if (snapshot.gpu_types.size() == 1) {
        return snapshot.gpu_types[0].gpus >= spec.gpus_min && spec.ideal_bytes_per_second[0] > 0 ? 0 : kNoGpuType;
    }
    std::uint32_t best = kNoGpuType;
    double best_rate = 0;
    for (std::uint32_t type = 0; type < snapshot.gpu_types.size(); ++type) {
        if (spec.gpu_type != kAnyGpuType && spec.gpu_type != type) continue;
        if (snapshot.gpu_types[type].gpus < spec.gpus_min) continue;
        const double rate = spec.ideal_bytes_per_second[type];
        if (rate > best_rate) {
            best_rate = rate;
            best = type;
        }
    }
    return best;
}

}  // namespace larder::scheduler
