#include "scheduler/live/submission.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "base/units.h"

namespace larder::scheduler {
namespace {

constexpr std::size_t kNameBytesMax = 255;
constexpr std::size_t kCommandWordsMax = 4096;
constexpr double kRateMax = 1e18;
constexpr double kEpochsMax = 1e6;
constexpr double kGraceMax_s = 24 * 3600.0;
constexpr double kRestartMax_s = 86400;
constexpr double kWeightMin = 1e-6;
constexpr double kWeightMax = 1e6;
constexpr double kScalingMax = 1e4;
constexpr std::size_t kNodesMax = 1000;
constexpr std::size_t kPodsMax = 256;

std::unexpected<Error> wrong(const std::string& field, const std::string& why) {
    return fail(ErrorCode::invalid_argument, field + ": " + why);
}

std::string list_of(const auto& things) {
    std::string list;
    for (const auto& thing : things) list += (list.empty() ? "" : ", ") + thing.name;
    return list.empty() ? "none" : list;
}

Result<void> check_name(const std::string& name) {
    if (name.empty()) return {};
    constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    if (name.size() > kNameBytesMax || name.find_first_not_of(letters) != std::string::npos) {
        return wrong("name", "\"" + name + "\" must have at most 255 letters, digits, dots, _ and -");
    }
    if (name.find_first_not_of("0123456789") == std::string::npos) {
        return wrong("name", "\"" + name + "\" could be the number of a job: it needs a letter");
    }
    return {};
}

// Slurm's agent runs as root, and takes the first two for jobs that it has submitted itself: other users could cancel
// or move each other's Slurm jobs by them.
Result<void> check_reserved(const Submission& job, const Submitter& by) {
    if (by.may_submit_for_all()) return {};
    if (job.name.starts_with("slurm-")) {
        return fail(
            ErrorCode::permission_denied,
            "name: \"" + job.name + "\" is kept for a job of Slurm: only operators and agents submit such names");
    }
    if (job.engine_parameters.contains("slurm_job")) {
        return fail(ErrorCode::permission_denied, "engine_parameters: only operators and agents give slurm_job");
    }
    if (job.reader_uid) {
        return fail(ErrorCode::permission_denied, "reader_uid: only operators and agents say who reads for a job");
    }
    return {};
}

Result<void> check_command(const Submission& job) {
    if (job.command.empty() || job.command.front().empty()) return wrong("command", "is missing");
    if (job.command.size() > kCommandWordsMax) return wrong("command", "has too many words");
    for (const std::string& word : job.command) {
        if (word.find('\0') != std::string::npos) return wrong("command", "has a NUL in it");
    }
    if (!job.directory.starts_with('/')) return wrong("directory", "must be an absolute path");
    for (const auto& [key, value] : job.environment) {
        if (key.empty() || key.find('=') != std::string::npos || (key + value).find('\0') != std::string::npos) {
            return wrong("environment", "\"" + key + "\" is not the name of a variable, or its value has a NUL in it");
        }
    }
    return {};
}

// Checks the weight and the fields that tell policies how the job runs on other GPUs than it asks for.
Result<void> check_rates(const Submission& job) {
    if (!(job.weight >= kWeightMin && job.weight <= kWeightMax)) return wrong("weight", "must be from 1e-6 to 1e6");
    if (!(job.restart_s >= 0 && job.restart_s <= kRestartMax_s)) return wrong("restart_s", "must be from 0 to 86400");
    if (!(job.packed_rate >= 0 && job.packed_rate <= 1)) return wrong("packed_rate", "must be from 0 to 1");
    if (!(job.gpu_memory_part >= 0 && job.gpu_memory_part <= 1)) return wrong("gpu_memory_part", "must be from 0 to 1");
    if (job.packed_rate > 0 && job.gpu_memory_part == 0) {
        return wrong("packed_rate", "needs gpu_memory_part: jobs share GPUs only if the memory of both fits");
    }
    if (!job.scaling.empty() && job.scaling.size() != job.most_gpus() - job.least_gpus() + 1) {
        return wrong("scaling", "must have a rate for each number of GPUs from gpus_min to gpus_max");
    }
    for (const double rate : job.scaling) {
        if (!(rate > 0 && rate <= kScalingMax)) return wrong("scaling", "must have rates above 0, at most 1e4");
    }
    for (const double rate : job.rate_by_nodes) {
        if (!(rate > 0 && rate <= 1)) return wrong("rate_by_nodes", "must have rates above 0, at most 1");
    }
    if (job.rate_by_nodes.size() > kNodesMax) return wrong("rate_by_nodes", "must have at most 1000 rates");
    return {};
}

Result<void> check_shape(const Submission& job) {
    const GangShape& shape = job.shape;
    for (const auto& [field, text] : {std::pair("hierarchy", &shape.hierarchy), std::pair("together", &shape.together),
                                      std::pair("cell", &shape.cell)}) {
        if (text->size() > kNameBytesMax) return wrong(field, "must have at most 255 bytes");
    }
    if (shape.is_free()) return {};
    const std::uint64_t gpus = std::accumulate(shape.pods.begin(), shape.pods.end(), std::uint64_t{0});
    if (shape.pods.size() > kPodsMax || std::ranges::find(shape.pods, 0U) != shape.pods.end()) {
        return wrong("pods", "must have at most 256 pods of at least 1 GPU");
    }
    if (!shape.pods.empty() && gpus != job.gpus) {
        return wrong("pods", "have " + std::to_string(gpus) + " GPUs in all, but gpus is " + std::to_string(job.gpus));
    }
    if (!shape.pods.empty() && job.least_gpus() != job.most_gpus()) {
        const std::uint32_t pod = shape.pods.front();
        if (std::ranges::any_of(shape.pods, [&](std::uint32_t other) { return other != pod; })) {
            return wrong("pods",
                         "of different sizes are a fixed number of GPUs: gpus_min and gpus_max must equal gpus");
        }
        if (job.least_gpus() % pod != 0 || job.most_gpus() % pod != 0) {
            return wrong("pods", "come and go whole: gpus_min and gpus_max must be multiples of their GPUs");
        }
        if (job.most_gpus() / pod > kPodsMax) return wrong("gpus_max", "is more than 256 pods");
    }
    if (job.elastic && !shape.needs_no_cells()) {
        return wrong("elastic", "the nodes of a job that says where its gang may lie cannot change");
    }
    if (job.packed_rate > 0) {
        return wrong("packed_rate", "a job that says where its gang may lie shares no GPUs");
    }
    if (job.opportunistic && !shape.cell.empty()) {
        return wrong("cell", "an opportunistic job has no claim to a pinned cell");
    }
    return {};
}

Result<void> check_numbers(const Submission& job, double now_s) {
    if (job.gpus == 0) return wrong("gpus", "must be at least 1");
    if (job.least_gpus() > job.gpus) return wrong("gpus_min", "is above gpus");
    if (job.most_gpus() < job.gpus) return wrong("gpus_max", "is below gpus");
    if (job.elastic && job.least_gpus() == job.most_gpus()) {
        return wrong("elastic", "needs a range of GPUs: gpus_min below gpus_max");
    }
    if (!(job.grace_s >= 0 && job.grace_s <= kGraceMax_s)) return wrong("grace_s", "must be from 0 to 86400");
    if (job.opportunistic && !job.preemptible) {
        return wrong("opportunistic",
                     "an opportunistic job is stopped when its GPUs are claimed: it must be preemptible");
    }
    if (job.opportunistic && job.deadline_s) {
        return wrong("opportunistic", "nothing can be promised to an opportunistic job: it cannot have a deadline");
    }
    if (auto checked = check_rates(job); !checked) return checked;
    if (auto checked = check_shape(job); !checked) return checked;
    if (job.epochs) {
        if (!(*job.epochs > 0 && *job.epochs <= kEpochsMax)) return wrong("epochs", "must be above 0, at most 1e6");
        if (job.dataset.empty()) return wrong("epochs", "counts passes over a dataset, but none is named");
    }
    for (const auto& [type, rate] : job.ideal_by_type) {
        if (!(rate > 0 && rate <= kRateMax)) return wrong("ideal_bytes_per_second", "must be above 0, at most 1e18");
    }
    if (job.service == ServiceClass::best_effort && job.deadline_s) {
        return wrong("service", "a deadline needs to be strict or soft");
    }
    if (job.service != ServiceClass::best_effort) {
        if (!job.deadline_s) return wrong("service", "strict and soft are about a deadline, but none is given");
        if (!(*job.deadline_s > now_s)) return wrong("deadline_s", "is over already");
        if (job.service == ServiceClass::strict_deadline && !job.epochs) {
            return wrong(
                "service",
                "a strict deadline is a promise, which needs a known amount of work: give epochs, or use soft");
        }
    }
    return {};
}

struct MostGpus {
    std::uint32_t gpus = 0;
    std::uint32_t owned = 0;  // of these, those that its tenant has a claim to
};

bool may_run_on_type(const Submission& job, const std::string& type) {
    if (!job.gpu_type.empty() && job.gpu_type != type) return false;
    return job.ideal_by_type.empty() || job.ideal_by_type.contains("") || job.ideal_by_type.contains(type);
}

// Checks that some type has a place for the gang's shape.
Result<void> check_place(const Submission& job, std::uint32_t tenant, const SubmissionLimits& limits) {
    if (limits.placer == nullptr || job.shape.is_free()) return {};
    Result<void> checked;
    for (std::uint32_t type = 0; type < limits.cluster.gpu_types.size(); ++type) {
        if (!may_run_on_type(job, limits.cluster.gpu_types[type])) continue;
        checked = limits.placer->check({.job = 0,
                                        .tenant = tenant,
                                        .gpus = job.least_gpus(),
                                        .gpu_type = type,
                                        .opportunistic = job.opportunistic,
                                        .near = {},
                                        .shape = &job.shape});
        if (checked) return {};
    }
    return checked;
}

// Returns the most GPUs of one type that the job may run on, because a gang uses a single type.
Result<MostGpus> most_of_one_type(const Submission& job, std::uint32_t tenant, const SubmissionLimits& limits) {
    const GpuCluster& cluster = limits.cluster;
    std::vector<std::uint32_t> gpus(cluster.gpu_types.size());
    for (const GpuNode& node : cluster.nodes) gpus[node.gpu_type] += node.gpus;
    MostGpus most;
    for (std::uint32_t type = 0; type < gpus.size(); ++type) {
        if (!may_run_on_type(job, cluster.gpu_types[type])) continue;
        most.gpus = std::max(most.gpus, gpus[type]);
        const std::uint32_t owned = limits.placer == nullptr ? kAllGpus : limits.placer->owned_gpus(tenant, type);
        most.owned = std::max(most.owned, std::min(owned, gpus[type]));
    }
    const auto known = [&](const std::string& type) {
        return type.empty() || std::ranges::find(cluster.gpu_types, type) != cluster.gpu_types.end();
    };
    std::string types;
    for (const std::string& type : cluster.gpu_types) types += (types.empty() ? "" : ", ") + type;
    for (const auto& [type, rate] : job.ideal_by_type) {
        if (!known(type)) return fail(ErrorCode::not_found, "GPU type \"" + type + "\" is unknown; known: " + types);
    }
    if (!known(job.gpu_type)) {
        return fail(ErrorCode::not_found, "GPU type \"" + job.gpu_type + "\" is unknown; known: " + types);
    }
    return most;
}

bool may_submit_for(std::size_t tenant, const SubmissionLimits& limits) {
    return limits.rules.empty() || limits.rules[tenant].allows(limits.by);
}

template <typename T>
struct TenantLimit {
    T value;
    const std::string& tenant;  // whose limit it is
};

// Returns the lowest limit of the tenant and of those above it; nullopt if none has one.
template <typename T>
std::optional<TenantLimit<T>> lowest_limit(std::optional<T> SubmitRule::* limit, std::size_t tenant,
                                           const SubmissionLimits& limits) {
    std::size_t lowest = kNoTenant;
    if (limits.rules.empty()) return std::nullopt;
    for (std::size_t at = tenant; at != kNoTenant; at = limits.tenants[at].parent) {
        const auto& own = limits.rules[at].*limit;
        if (own && (lowest == kNoTenant || *own < *(limits.rules[lowest].*limit))) lowest = at;
    }
    if (lowest == kNoTenant) return std::nullopt;
    return TenantLimit<T>{*(limits.rules[lowest].*limit), limits.tenants[lowest].name};
}

Result<void> check_priority(const Submission& job, std::size_t tenant, const SubmissionLimits& limits) {
    const auto most = lowest_limit(&SubmitRule::priority_max, tenant, limits);
    if (limits.by.may_submit_for_all() || !most || job.priority <= most->value) return {};
    return fail(ErrorCode::permission_denied, "priority " + std::to_string(job.priority) + " is above " +
                                                  std::to_string(most->value) + ", the highest for tenant \"" +
                                                  most->tenant + "\"");
}

Result<void> check_weight(const Submission& job, std::size_t tenant, const SubmissionLimits& limits) {
    const auto most = lowest_limit(&SubmitRule::weight_max, tenant, limits);
    const double weight_max = most ? most->value : 1;
    if (limits.by.may_submit_for_all() || job.weight <= weight_max) return {};
    char text[96];
    std::snprintf(text, sizeof text, "weight %g is above %g, the highest for tenant ", job.weight, weight_max);
    return fail(ErrorCode::permission_denied, text + ("\"" + (most ? most->tenant : limits.tenants[tenant].name)) +
                                                  "\" (scheduler.tenant.NAME.weight_max in the allocator's config)");
}

// The bytes of a text in JSON.
std::uint64_t text_bytes(std::string_view text) {
    std::uint64_t bytes = text.size() + 3;  // two quotes and a comma
    for (const char c : text) {
        if (c == '"' || c == '\\') bytes += 1;
        if (static_cast<unsigned char>(c) < ' ') bytes += 5;  // \u0001
    }
    return bytes;
}

}  // namespace

std::uint64_t record_bytes(const Submission& job) {
    constexpr std::uint64_t kOthers = 8u << 10;
    constexpr std::uint64_t kNumber = 26;
    std::uint64_t bytes = kOthers;
    for (const std::string* text : {&job.name, &job.directory, &job.submitter, &job.tenant, &job.gpu_type, &job.dataset,
                                    &job.shape.hierarchy, &job.shape.together, &job.shape.cell})
        bytes += text_bytes(*text);
    for (const std::string& word : job.command) bytes += text_bytes(word);
    for (const std::string& before : job.after) bytes += text_bytes(before);
    for (const auto& [key, value] : job.environment) bytes += text_bytes(key) + text_bytes(value);
    for (const auto& [key, value] : job.engine_parameters) bytes += text_bytes(key) + text_bytes(value);
    for (const auto& [type, rate] : job.ideal_by_type) bytes += text_bytes(type) + kNumber;
    return bytes + kNumber * (job.scaling.size() + job.rate_by_nodes.size() + job.after.size() + job.shape.pods.size());
}

Result<std::string> tenant_of(const Submission& job, const SubmissionLimits& limits) {
    const std::span<const Tenant> tenants = limits.tenants;
    std::vector<Tenant> own;  // those that the submitter may submit for
    for (std::size_t t = 0; t < tenants.size(); ++t) {
        if (may_submit_for(t, limits)) own.push_back(tenants[t]);
    }
    std::string wanted = job.tenant.empty() ? "default" : job.tenant;
    if (std::ranges::find(own, wanted, &Tenant::name) != own.end()) return wanted;
    const bool is_known = std::ranges::find(tenants, wanted, &Tenant::name) != tenants.end();
    if (!job.tenant.empty() && is_known) {
        return fail(ErrorCode::permission_denied, "you may not submit for tenant \"" + job.tenant +
                                                      "\"; for: " + list_of(own) +
                                                      " (scheduler.tenant.NAME.submitters in the allocator's config)");
    }
    if (!job.tenant.empty()) {
        return fail(ErrorCode::not_found, "tenant \"" + job.tenant + "\" is unknown; known: " + list_of(tenants));
    }
    if (own.size() == 1) return own.front().name;
    if (own.empty()) {
        return fail(ErrorCode::permission_denied,
                    "you may submit for no tenant (scheduler.tenant.NAME.submitters in the allocator's config)");
    }
    return fail(ErrorCode::invalid_argument, "the job must name the tenant it counts for (--tenant): " + list_of(own));
}

Result<void> check_submission(const Submission& job, const SubmissionLimits& limits) {
    if (auto good = check_name(job.name); !good) return good;
    if (auto good = check_reserved(job, limits.by); !good) return good;
    if (auto good = check_command(job); !good) return good;
    if (auto good = check_numbers(job, limits.now_s); !good) return good;
    if (!job.engine_parameters.empty() && !limits.engine_takes_parameters) {
        return wrong("engine_parameters", "only a cluster manager takes them, but jobs run on the allocator's machine");
    }
    if (const std::uint64_t bytes = record_bytes(job); bytes > kRecordBytesMax) {
        return wrong("command", "and environment are too long: the job would take " + format_bytes(bytes) +
                                    " in the queue, of at most " + format_bytes(kRecordBytesMax));
    }
    const auto counts_for = tenant_of(job, limits);
    if (!counts_for) return std::unexpected(counts_for.error());
    const auto tenant = std::ranges::find(limits.tenants, *counts_for, &Tenant::name);
    const auto index = static_cast<std::size_t>(tenant - limits.tenants.begin());
    if (auto good = check_priority(job, index, limits); !good) return good;
    if (auto good = check_weight(job, index, limits); !good) return good;
    if (!job.dataset.empty() &&
        std::ranges::find(limits.datasets, job.dataset, &DatasetState::name) == limits.datasets.end()) {
        return fail(ErrorCode::not_found,
                    "dataset \"" + job.dataset + "\" is unknown: no node has it; known: " + list_of(limits.datasets));
    }
    const auto most = most_of_one_type(job, static_cast<std::uint32_t>(index), limits);
    if (!most) return std::unexpected(most.error());
    const std::string asks = "it asks for " + std::string(job.least_gpus() < job.gpus ? "at least " : "") +
                             std::to_string(job.least_gpus()) + " GPUs";
    if (job.least_gpus() > most->gpus) {
        return fail(ErrorCode::no_space,
                    asks + ", but the cluster has " + std::to_string(most->gpus) + " of one type that it may use");
    }
    if (!job.opportunistic && job.least_gpus() > most->owned) {
        return fail(ErrorCode::no_space, asks + ", but tenant \"" + *counts_for + "\" has a claim to " +
                                             std::to_string(most->owned) +
                                             " of one type that it may use; as an opportunistic job it needs no claim");
    }
    if (auto good = check_place(job, static_cast<std::uint32_t>(index), limits); !good) return good;
    for (const Tenant* at = &*tenant;; at = &limits.tenants[at->parent]) {
        if (job.least_gpus() > at->gpu_quota) {
            return fail(ErrorCode::no_space, asks + ", but tenant \"" + at->name + "\" may have " +
                                                 std::to_string(at->gpu_quota) + " at a time");
        }
        if (at->parent == kNoTenant) return {};
    }
}

}  // namespace larder::scheduler
