#pragma once

// What the jobs of a trace train on. Traces say when jobs came and for how long; a workload table says which models
// there are, how fast each reads on which GPUs, and from which dataset. It is TOML (see default_workload()):
//
//     reference = "v100"           durations in traces are on these GPUs
//     [[dataset]]
//     name = "imagenet-1k"
//     size = "143GB"
//     copies = 1                   so many of this shape, each job reads one; 0: every job has one of its own
//     [[model]]
//     name = "resnet50"
//     dataset = "imagenet-1k"      none: it reads nothing that matters
//     weight = 2                   how often a job without a model is given this one
//     rate = {v100 = "114MB/s"}    f* of one GPU; `any` for types not named
//     scaling = [0.6, 1, 1.3]      of elastic jobs: rate with gpus_min ... gpus_max GPUs over that with `gpus`
//     by_nodes = [1, 0.9]          rate on 1, 2, ... nodes over that on one; the last holds for more
//     restart = "30s"              lost at each start after the first
//     checkpoint = "1GB"           written when stopped, read when started again
//     packed = 0.6                 what is left of the rate when two share their GPUs; 0: they may not
//
// A job's model is the one its trace names, if the table has it; else one is drawn by weight, the same for the same
// name and seed.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/simulator/trace.h"
#include "scheduler/snapshot.h"

namespace larder::scheduler {

struct DatasetShape {
    std::string name;
    double size_bytes = 0;
    std::uint32_t copies = 1;
};

struct ModelShape {
    std::string name;
    std::uint32_t dataset = kNoDataset;  // in WorkloadTable::datasets
    double weight = 1;
    // f* of one GPU, by type; "any" for the others.
    std::map<std::string, double> rates;
    // Where they were measured: f* of the whole job, by GPUs, then type. Used in place of `rates`.
    std::map<std::uint32_t, std::map<std::string, double>> measured_rates;
    double bytes_per_step = 0;
    std::vector<double> scaling;  // JobSpec's, of elastic jobs; empty: in proportion
    std::vector<double> rate_by_nodes;
    double restart_s = 0;
    double checkpoint_bytes = 0;
    double packed_rate = 0;
};

struct WorkloadTable {
    std::string reference;
    std::vector<DatasetShape> datasets;
    std::vector<ModelShape> models;
};

// invalid_argument names the key, the value and what is allowed.
Result<WorkloadTable> parse_workload(std::string_view toml);
Result<WorkloadTable> read_workload(const std::string& path);
std::string_view default_workload();

// A table of isolated throughputs, as Gavel publishes them: {TABLE: {MODEL: {GPUS: {TYPE: steps per second}}}}. A step
// counts as one megabyte of no dataset: storage does not bind.
Result<WorkloadTable> read_throughputs(const std::string& path, const std::string& table);

struct Workload {
    std::vector<JobSpec> jobs;        // by time of submission
    std::vector<std::string> models;  // of each job
    std::vector<DatasetState> datasets;
    std::vector<Tenant> tenants;
};

struct WorkloadOptions {
    std::uint64_t seed = 1;
    double arrivals_faster = 1;   // times of submission are divided by this
    double durations_longer = 1;  // durations are multiplied by this
    // So large a part of the jobs, drawn by seed, is given strict deadlines, where the trace has none: a minute and
    // from 1.1 to 3 times their duration after they were submitted, about what Chronus's own traces have.
    double deadlines_part = 0;
    double opportunistic_part = 0;  // so large a part of those without deadlines, drawn by seed, have no claim
    std::map<std::string, double> tenant_weights;  // of 1 where a tenant is not named
    std::vector<Tenant> tenants;                   // in place of weights: as configured; others have no quota
    std::optional<std::uint32_t> dataset_copies;   // of every dataset, in place of what the table says
};

// NAME,WEIGHT a line, after a header: Astraea's shares, for one.
Result<std::map<std::string, double>> read_tenant_weights(const std::string& path);

// not_found: a job's GPU type is not in the cluster; invalid_argument: its model has no rate on any type of it.
Result<Workload> make_workload(const Trace& trace, const WorkloadTable& table,
                               const std::vector<std::string>& gpu_types, const WorkloadOptions& options);

}  // namespace larder::scheduler
