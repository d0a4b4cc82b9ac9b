#pragma once

// Job traces: when each job arrived, with how many GPUs and for how long. A trace file has one of these formats, which
// is detected by the file's columns:
//
//     larder    submit_s,duration_s,gpus and, in any order, any of name, tenant (or vc), model, gpu_type, gpus_min,
//               gpus_max, priority, deadline_s (a point in time), service (best_effort, soft, strict), preemptible,
//               opportunistic, elastic
//     tiresias  job_id,num_gpu,submit_time,iterations,model_name,duration,interval     (Tiresias, NSDI '19)
//     chronus   the same with user, expect_time_list, expect_value_list, best_effort, job_type   (Chronus, SoCC '21)
//     gavel     tab-separated: job type, command, ..., steps, arrival, GPUs            (Gavel, OSDI '20)
//
// Rows need not be sorted by time. An invalid row is an error with its line number; with `skip_bad` it is counted and
// left out.

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "base/error.h"
#include "scheduler/job_spec.h"

namespace larder::scheduler {

struct TraceJob {
    std::string name;
    std::string tenant;
    std::string model;     // empty: drawn from the workload table
    std::string gpu_type;  // empty: any
    double submit_s = 0;
    double duration_s = 0;  // with `gpus` GPUs and no wait for data; 0: given by total_steps
    double total_steps = 0;
    std::uint32_t gpus = 1;
    std::uint32_t gpus_min = 0;  // 0: same as `gpus`
    std::uint32_t gpus_max = 0;
    double weight = 1;
    std::int32_t priority = 0;
    double deadline_s = kNever;
    ServiceClass service = ServiceClass::best_effort;
    std::vector<ValueUntil> values;  // as in JobSpec
    bool preemptible = true;
    bool opportunistic = false;
    bool elastic = false;  // JobSpec::resizable
};

struct Trace {
    std::vector<TraceJob> jobs;  // by submission time
    std::string format;
    std::uint64_t skipped = 0;
    std::string first_skipped;  // the error of the first skipped row
};

struct TraceOptions {
    bool skip_bad = false;
    std::uint64_t jobs_max = 0;  // keeps the first jobs_max jobs; 0: all
};

// invalid_argument: "line 7: ..."; io: the file cannot be read.
Result<Trace> read_trace(const std::string& path, const TraceOptions& options);
Result<Trace> parse_trace(std::istream& text, const TraceOptions& options);

}  // namespace larder::scheduler
