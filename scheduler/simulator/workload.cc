#include "scheduler/simulator/workload.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "scheduler/simulator/random.h"

namespace larder::scheduler {
namespace {

// FNV-1a, which is the same on every machine.
std::uint64_t hash_text(std::string_view text) {
    std::uint64_t hash = 0xcbf29ce484222325U;
    for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3U;
    return hash;
}

double rate_on(const ModelShape& model, const std::string& type, std::uint32_t gpus) {
    if (!model.measured_rates.empty()) {
        const auto by_type = model.measured_rates.find(gpus);
        if (by_type == model.measured_rates.end()) return 0;
        const auto rate = by_type->second.find(type);
        return rate == by_type->second.end() ? 0 : rate->second;
    }
    auto rate = model.rates.find(type);
    if (rate == model.rates.end()) rate = model.rates.find("any");
    return rate == model.rates.end() ? 0 : rate->second * gpus;
}

class WorkloadMaker {
public:
    WorkloadMaker(const WorkloadTable& table, const std::vector<std::string>& gpu_types, const WorkloadOptions& options)
        : table_(table), gpu_types_(gpu_types), options_(options), first_copies_(table.datasets.size()) {
        for (const Tenant& tenant : options.tenants) {
            tenants_.emplace(tenant.name, static_cast<std::uint32_t>(workload_.tenants.size()));
            workload_.tenants.push_back(tenant);
        }
        for (const ModelShape& model : table.models) weight_sum_ += model.weight;
        add_pair_rates();
        for (std::uint32_t d = 0; d < table.datasets.size(); ++d) {
            const DatasetShape& shape = table.datasets[d];
            const std::uint32_t copies = copies_of(shape);
            first_copies_[d] = static_cast<std::uint32_t>(workload_.datasets.size());
            for (std::uint32_t copy = 0; copy < copies; ++copy) add_copy(shape, copy);
        }
    }

    Result<void> add(const TraceJob& job) {
        const auto refuse = [&](ErrorCode code, const std::string& why) {
            return fail(code, "job " + job.name + ": " + why);
        };
        // A job's draws do not depend on the other jobs.
        Random random(options_.seed ^ hash_text(job.model.empty() ? job.name : job.model));
        const auto model = model_of(job, random);
        if (!model)
            return refuse(ErrorCode::invalid_argument,
                          "the workload table has no model \"" + job.model + "\", and none with a weight");
        const ModelShape& shape = table_.models[*model];
        JobSpec spec;
        spec.model = static_cast<std::uint32_t>(*model);
        spec.name = job.name;
        spec.tenant = tenant_of(job.tenant);
        spec.submit_s = job.submit_s / options_.arrival_speedup;
        spec.gpus = job.gpus;
        spec.gpus_min = job.gpus_min;
        spec.gpus_max = job.gpus_max;
        spec.weight = job.weight;
        spec.priority = job.priority;
        spec.service = job.service;
        spec.preemptible = job.preemptible;
        spec.opportunistic = job.opportunistic;
        spec.resizable = job.elastic;
        if (job.deadline_s != kNever) {
            const auto moved = [&](double time_s) {
                return spec.submit_s + (time_s - job.submit_s) * options_.duration_factor;
            };
            spec.deadline_s = moved(job.deadline_s);
            spec.values.reserve(job.values.size());
            for (const auto& [until_s, value] : job.values) {
                spec.values.push_back({.until_s = moved(until_s), .value = value});
            }
        }
        draw_deadline(job, spec);
        draw_claim(job, spec);
        if (!job.gpu_type.empty()) {
            const auto type = std::ranges::find(gpu_types_, job.gpu_type);
            if (type == gpu_types_.end())
                return refuse(ErrorCode::not_found, "the cluster has no GPUs of type \"" + job.gpu_type + "\"");
            spec.gpu_type = static_cast<std::uint32_t>(type - gpu_types_.begin());
        }
        for (const std::string& type : gpu_types_)
            spec.ideal_bytes_per_second.push_back(rate_on(shape, type, job.gpus));
        const double fastest = std::ranges::max(spec.ideal_bytes_per_second);
        if (!(fastest > 0)) {
            return refuse(ErrorCode::invalid_argument, "model " + shape.name + " has no rate with " +
                                                           std::to_string(job.gpus) +
                                                           " GPUs of any type in the cluster");
        }
        const double reference_rate = rate_on(shape, table_.reference, job.gpus);
        if (job.duration_s > 0) {
            spec.total_bytes =
                job.duration_s * options_.duration_factor * (reference_rate > 0 ? reference_rate : fastest);
        } else if (shape.bytes_per_step > 0) {
            spec.total_bytes = job.total_steps * shape.bytes_per_step * options_.duration_factor;
        } else {
            return refuse(ErrorCode::invalid_argument,
                          "its length is in steps, but the bytes per step of model " + shape.name + " are unknown");
        }
        if (!shape.scaling.empty() && spec.gpus_min < spec.gpus_max) {
            if (shape.scaling.size() != spec.gpus_max - spec.gpus_min + 1) {
                return refuse(ErrorCode::invalid_argument,
                              "scaling of model " + shape.name + " has " + std::to_string(shape.scaling.size()) +
                                  " rates, and must have one for each number of GPUs from gpus_min to gpus_max");
            }
            spec.scaling = shape.scaling;
        }
        spec.rate_by_nodes = shape.rate_by_nodes;
        spec.restart_s = shape.restart_s;
        spec.checkpoint_bytes = shape.checkpoint_bytes;
        spec.packed_rate = shape.packed_rate;
        spec.gpu_memory_part = shape.gpu_memory_part;
        if (shape.dataset != kNoDataset) spec.dataset = dataset_of(shape.dataset, job.name);
        workload_.models.push_back(shape.name);
        workload_.jobs.push_back(std::move(spec));
        return {};
    }

    Workload take() { return std::move(workload_); }

private:
    std::optional<std::size_t> model_of(const TraceJob& job, Random& random) const {
        const auto named = std::ranges::find(table_.models, job.model, &ModelShape::name);
        if (named != table_.models.end()) return named - table_.models.begin();
        if (!(weight_sum_ > 0)) return std::nullopt;
        double drawn = random.uniform() * weight_sum_;
        std::size_t last = 0;
        for (std::size_t m = 0; m < table_.models.size(); ++m) {
            if (!(table_.models[m].weight > 0)) continue;
            last = m;
            drawn -= table_.models[m].weight;
            if (drawn < 0) break;
        }
        return last;
    }

    void add_pair_rates() {
        if (table_.pairs.empty()) return;
        workload_.pair_rates =
            PairRates(static_cast<std::uint32_t>(gpu_types_.size()), static_cast<std::uint32_t>(table_.models.size()));
        for (const PairShape& pair : table_.pairs) {
            const auto type = std::ranges::find(gpu_types_, pair.gpu_type);
            if (type == gpu_types_.end()) continue;
            const double first_alone = rate_on(table_.models[pair.first], pair.gpu_type, 1);
            const double second_alone = rate_on(table_.models[pair.second], pair.gpu_type, 1);
            if (first_alone <= 0 || second_alone <= 0) continue;
            workload_.pair_rates.set(
                static_cast<std::uint32_t>(type - gpu_types_.begin()), pair.first, pair.second,
                {.first = pair.first_rate / first_alone, .second = pair.second_rate / second_alone});
        }
    }

    void draw_deadline(const TraceJob& job, JobSpec& spec) const {
        if (spec.deadline_s != kNever || !(job.duration_s > 0)) return;
        Random random(options_.seed + 2 + hash_text(job.name));
        if (random.uniform() >= options_.deadlines_part) return;
        const double slack = 1.1 + 1.9 * random.uniform();
        spec.service = ServiceClass::strict_deadline;
        spec.deadline_s = spec.submit_s + 60 + slack * job.duration_s * options_.duration_factor;
    }

    void draw_claim(const TraceJob& job, JobSpec& spec) const {
        if (spec.service != ServiceClass::best_effort || !spec.preemptible) return;
        Random random(options_.seed + 3 + hash_text(job.name));
        if (random.uniform() < options_.opportunistic_part) spec.opportunistic = true;
    }

    std::uint32_t tenant_of(const std::string& name) {
        const auto [at, added] = tenants_.emplace(name, static_cast<std::uint32_t>(workload_.tenants.size()));
        if (added) {
            const auto weight = options_.tenant_weights.find(name);
            workload_.tenants.push_back(
                {.name = name, .weight = weight == options_.tenant_weights.end() ? 1 : weight->second});
        }
        return at->second;
    }

    std::uint32_t dataset_of(std::uint32_t shape, const std::string& job) {
        const std::uint32_t copies = copies_of(table_.datasets[shape]);
        if (copies == 0) {
            add_copy(table_.datasets[shape], copies_made_++);
            return static_cast<std::uint32_t>(workload_.datasets.size() - 1);
        }
        Random random(options_.seed + 1 + hash_text(job));
        return first_copies_[shape] + static_cast<std::uint32_t>(random.below(copies));
    }

    std::uint32_t copies_of(const DatasetShape& shape) const { return options_.dataset_copies.value_or(shape.copies); }

    void add_copy(const DatasetShape& shape, std::uint32_t copy) {
        workload_.datasets.push_back(
            {.name = copies_of(shape) == 1 ? shape.name : shape.name + "-" + std::to_string(copy),
             .size_bytes = shape.size_bytes});
    }

    const WorkloadTable& table_;
    const std::vector<std::string>& gpu_types_;
    const WorkloadOptions& options_;
    Workload workload_;
    std::vector<std::uint32_t> first_copies_;
    std::map<std::string, std::uint32_t> tenants_;
    double weight_sum_ = 0;
    std::uint32_t copies_made_ = 0;
};

}  // namespace

Result<std::map<std::string, double>> read_tenant_weights(const std::string& path) {
    std::ifstream file(path);
    if (!file) return fail_errno(errno, "open weights of tenants " + path);
    std::map<std::string, double> weights;
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
        if (number == 1 || line.empty()) continue;
        const std::size_t comma = line.find(',');
        char* end = nullptr;
        const double weight = comma == std::string::npos ? 0 : std::strtod(line.c_str() + comma + 1, &end);
        if (!(weight > 0) || (*end != '\0' && *end != '\r')) {
            return fail(ErrorCode::invalid_argument, path + ": line " + std::to_string(number) + ": \"" + line +
                                                         "\" is not NAME,WEIGHT with a weight above 0");
        }
        weights[line.substr(0, comma)] = weight;
    }
    return weights;
}

Result<Workload> make_workload(const Trace& trace, const WorkloadTable& table,
                               const std::vector<std::string>& gpu_types, const WorkloadOptions& options) {
    WorkloadMaker maker(table, gpu_types, options);
    for (const TraceJob& job : trace.jobs) {
        if (auto added = maker.add(job); !added) return std::unexpected(added.error());
    }
    return maker.take();
}

}  // namespace larder::scheduler
