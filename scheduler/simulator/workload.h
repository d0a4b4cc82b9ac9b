#pragma once

// Gives each job of a trace a model and a dataset. A trace says when jobs arrived and for how long they ran. A workload
// table says which models there are, which dataset each reads, and how fast on which GPUs. The table is TOML (see
// default_workload()):
//
//     reference = "v100"           durations in traces are on these GPUs
//     [[dataset]]
//     name = "imagenet-1k"
//     size = "143GB"
//     copies = 1                   number of such datasets; each job reads one of them; 0: one for every job
//     [[model]]
//     name = "resnet50"
//     dataset = "imagenet-1k"      omitted: the model reads no dataset
//     weight = 2                   how often a job without a model gets this one
//     rate = {v100 = "114MB/s"}    f* of one GPU; `any` for types not named
//     scaling = [0.6, 1, 1.3]      elastic jobs: rate with gpus_min ... gpus_max GPUs, divided by the rate with `gpus`
//     by_nodes = [1, 0.9]          rate on 1, 2, ... nodes, divided by the rate on one; the last holds for more
//     restart = "30s"              time lost at each start after the first
//     checkpoint = "1GB"           written when stopped, read when started again
//     packed = 0.6                 part of the rate that is left when two jobs share GPUs; 0: they may not
//     gpu_memory = 0.4             part of each GPU's memory that it uses at most; `packed` needs it
//
// A job's model is the one that its trace names, if the table has it. Else a model is drawn by weight; the same name
// and seed draw the same model.

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
    std::uint32_t dataset = kNoDataset;  // index in WorkloadTable::datasets
    double weight = 1;
    // f* of one GPU, by GPU type; "any" for types not named.
    std::map<std::string, double> rates;
    // Measured rates, if any: f* of the whole job, by number of GPUs, then type. They replace `rates`.
    std::map<std::uint32_t, std::map<std::string, double>> measured_rates;
    double bytes_per_step = 0;
    std::vector<double> scaling;  // JobSpec::scaling of elastic jobs; empty: in proportion to GPUs
    std::vector<double> rate_by_nodes;
    double restart_s = 0;
    double checkpoint_bytes = 0;
    double packed_rate = 0;
    double gpu_memory_part = 0;
};

// The rates of two jobs that share one GPU.
struct PairShape {
    std::string gpu_type;
    std::uint32_t first = 0;  // index in WorkloadTable::models
    std::uint32_t second = 0;
    double first_rate = 0;  // f*
    double second_rate = 0;
};

struct WorkloadTable {
    std::string reference;
    std::vector<DatasetShape> datasets;
    std::vector<ModelShape> models;
    std::vector<PairShape> pairs;
};

// invalid_argument names the key, the value and what is allowed.
Result<WorkloadTable> parse_workload(std::string_view toml);
Result<WorkloadTable> read_workload(const std::string& path);
std::string_view default_workload();

// Reads a table of isolated throughputs, as Gavel publishes them: {TABLE: {MODEL: {GPUS: {TYPE: steps per second}}}}. A
// step counts as 1 MB of work. The models read no dataset, so storage never limits a job.
// Durations are times on "v100", as in Gavel.
Result<WorkloadTable> read_throughputs(const std::string& path, const std::string& table);
// Reads throughputs of pairs of the table's models, as Gavel measures them: CSV with a header line
// worker_type,job_a,gpus,job_b,tput_a,tput_b. Rows of several GPUs are left out. The last row of a pair counts.
Result<void> read_pair_throughputs(const std::string& path, WorkloadTable& table);

struct Workload {
    std::vector<JobSpec> jobs;        // by submission time; JobSpec::model is the model's index in the table
    std::vector<std::string> models;  // the model of each job
    std::vector<DatasetState> datasets;
    std::vector<Tenant> tenants;
    PairRates pair_rates;
};

struct WorkloadOptions {
    std::uint64_t seed = 1;
    double arrival_speedup = 1;  // submission times are divided by this
    double duration_factor = 1;  // durations are multiplied by this
    // This part of the jobs, drawn by seed, gets a strict deadline if the trace gives none: 60 s plus 1.1 to 3 times
    // the job's duration after its submission, about as in Chronus's own traces.
    double deadlines_part = 0;
    // This part of the preemptible jobs without deadlines, drawn by seed, is made opportunistic
    // (JobSpec::opportunistic).
    double opportunistic_part = 0;
    std::map<std::string, double> tenant_weights;  // 1 for tenants not named
    std::vector<Tenant> tenants;  // as configured, in place of tenant_weights; a tenant not listed has no quota
    std::optional<std::uint32_t> dataset_copies;  // of every dataset, instead of the table's
};

// Reads lines of NAME,WEIGHT after a header line, such as Astraea's shares.
Result<std::map<std::string, double>> read_tenant_weights(const std::string& path);

// not_found: a job's GPU type is not in the cluster. invalid_argument: its model has no rate on any type of the
// cluster.
Result<Workload> make_workload(const Trace& trace, const WorkloadTable& table,
                               const std::vector<std::string>& gpu_types, const WorkloadOptions& options);

}  // namespace larder::scheduler
