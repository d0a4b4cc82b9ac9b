#include "scheduler/live/job_record.h"

#include <algorithm>
#include <array>

namespace larder::scheduler {
namespace {

constexpr std::size_t kLogMax = 100;

constexpr std::array<std::string_view, kPhases> kPhaseNames{"waiting",  "placed",    "starting", "running",
                                                            "stopping", "succeeded", "failed",   "cancelled"};
constexpr std::array<std::string_view, 6> kCauseNames{"none",      "preempted",     "moved",
                                                      "cancelled", "start_timeout", "node_removed"};

std::string range(unsigned from, unsigned to) {
    return from == to ? std::to_string(from) : std::to_string(from) + "-" + std::to_string(to);
}

std::string gpu_numbers(std::uint64_t gpus) {
    std::string text;
    for (unsigned i = 0; i < kGpusPerNodeMax; ++i) {
        if ((gpus >> i & 1) == 0) continue;
        const unsigned from = i;
        while (i + 1 < kGpusPerNodeMax && (gpus >> (i + 1) & 1) != 0) ++i;
        text += (text.empty() ? "" : ",") + range(from, i);
    }
    return text;
}

}  // namespace

std::string_view name(Phase phase) {
    return kPhaseNames[static_cast<std::size_t>(phase)];
}

std::string_view past(Phase ended) {
    if (ended == Phase::cancelled) return "was cancelled";
    return ended == Phase::failed ? "has failed" : "has succeeded";
}

std::string_view name(StopCause cause) {
    return kCauseNames[static_cast<std::size_t>(cause)];
}

const Allotment* JobRecord::placed() const {
    if (next) return &*next;
    return held && phase != Phase::stopping ? &*held : nullptr;
}

const Allotment& JobRecord::in_use() const {
    const bool grows = phase == Phase::running && is_resizing && next && next->count > held->count;
    return grows ? *next : *held;
}

double JobRecord::total_bytes() const {
    if (!asked.epochs || dataset_bytes == 0) return kNever;
    return *asked.epochs * static_cast<double>(dataset_bytes);
}

double JobRecord::remaining_bytes() const {
    return std::max(0.0, total_bytes() - read_bytes);
}

std::string title(const JobRecord& job) {
    return std::to_string(job.id) + " (" + job.asked.name + ")";
}

std::vector<NamedGpus> only_in(const Allotment& from, const Allotment& to) {
    std::vector<NamedGpus> only;
    for (const NamedGpus& share : from.gpus) {
        if (std::ranges::find(to.gpus, share.node, &NamedGpus::node) == to.gpus.end()) only.push_back(share);
    }
    return only;
}

bool includes(const Allotment& to, const Allotment& from) {
    return std::ranges::all_of(
        from.gpus, [&](const NamedGpus& share) { return std::ranges::find(to.gpus, share) != to.gpus.end(); });
}

bool can_resize(const Allotment& from, const Allotment& to) {
    if (from.gpu_type != to.gpu_type || from.packed_with || to.packed_with || from.gpus.empty()) return false;
    const bool keeps_first = std::ranges::find(to.gpus, from.gpus.front()) != to.gpus.end();
    return keeps_first && (includes(to, from) || includes(from, to));
}

void add_log(JobRecord& job, double at_s, std::string text) {
    if (job.log.size() >= kLogMax) job.log.erase(job.log.begin());
    job.log.push_back({.at_s = at_s, .text = std::move(text)});
}

std::string text_of(const Allotment& held) {
    std::string text = std::to_string(held.count) + (held.count == 1 ? " GPU of " : " GPUs of ");
    for (const NamedGpus& share : held.gpus) {
        text += (&share == &held.gpus.front() ? "" : ", ") + share.node + " (" + gpu_numbers(share.gpus) + ")";
    }
    return text;
}

}  // namespace larder::scheduler
