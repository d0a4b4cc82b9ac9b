// Any bytes as a what-if question or as a job's submission. Accepted input can be answered and recorded, refused input
// says why, and neither changes the cluster that is asked about.

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "allocator/service/json_lists.h"
#include "allocator/service/whatif.h"
#include "base/assert.h"
#include "base/server/json_reader.h"
#include "scheduler/live/json.h"
#include "scheduler/live/submission.h"

namespace larder {
namespace {

template <typename Value>
bool accepted(const Result<Value>& result) {
    LARDER_ASSERT(result || !result.error().message.empty());
    return result.has_value();
}

allocator::ClusterState one_job_cluster() {
    return {.remote_bytes_per_second = 1e9,
            .nodes = {{.name = "n1", .gpus = 8, .memory_bytes = 1 << 30, .disk_bytes = 1 << 30},
                      {.name = "n2", .gpus = 8, .disk_bytes = 1 << 30}},
            .datasets = {{.name = "images", .size_bytes = 3'000'000'000}},
            .jobs = {{.name = "vision",
                      .dataset = 0,
                      .gpus = 2,
                      .ideal_bytes_per_second = 5e8,
                      .remaining_epochs = 3,
                      .placement = {{.node = 0, .gpus = 2}}}}};
}

void ask_what_if(const boost::json::object& body) {
    const auto change = allocator::read_change(body, "body");
    if (!accepted(change)) return;
    const auto state = one_job_cluster();
    const auto comparison = allocator::what_if(state, {}, *change);
    if (!accepted(comparison)) return;
    LARDER_ASSERT(allocator::validate(comparison->after.state));
    LARDER_ASSERT(comparison->before.state.jobs.size() == state.jobs.size());
    LARDER_ASSERT(!boost::json::serialize(allocator::to_json(*comparison)).empty());
}

void submit(const boost::json::object& body) {
    using namespace scheduler;
    static const GpuCluster cluster{.gpu_types = {"a100", "k80"}, .nodes = {{"n1", 0, 8, true}, {"n2", 1, 4, true}}};
    static const std::vector<Tenant> tenants{{.name = "default"}, {.name = "vision", .gpu_quota = 8}};
    static const std::vector<DatasetState> datasets{{"images", 1e9}};
    auto submission = read_submission(body, "body");
    if (!accepted(submission)) return;
    if (!accepted(check_submission(*submission,
                                   {.cluster = cluster, .tenants = tenants, .datasets = datasets, .now_s = 1000})))
        return;
    LARDER_ASSERT(submission->least_gpus() > 0 && submission->least_gpus() <= submission->gpus &&
                  submission->gpus <= submission->most_gpus());
    JobRecord job;
    job.id = 1;
    job.asked = std::move(*submission);
    const auto row = row_json(job, cluster.gpu_types);
    LARDER_ASSERT(row_json(job_of_row(row, cluster.gpu_types), cluster.gpu_types) == row);
}

}  // namespace
}  // namespace larder

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace larder;
    const std::string body(reinterpret_cast<const char*>(data), size);
    const auto object = parse_json_object(body, "request body");
    if (!accepted(object)) return 0;
    ask_what_if(*object);
    submit(*object);
    return 0;
}
