#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "tools/cli/allocator.h"
#include "tools/cli/api.h"
#include "tools/cli/live.h"
#include "tools/cli/table.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

std::string datasets_text(const json::array& datasets) {
    Table table({"DATASET", ">SIZE", ">QUOTA", ">USED", ">EFFECTIVE", ">PINNED", ">GRANTED", "JOBS"});
    for (const json::value& value : datasets) {
        const json::object& dataset = as_object(value);
        table.add({text_at(dataset, "name"), bytes_at(dataset, "size_bytes"), bytes_at(dataset, "quota_bytes"),
                   bytes_at(dataset, "cached_bytes"), bytes_at(dataset, "effective_bytes"),
                   bytes_at(dataset, "pinned_bytes"), rate_at(dataset, "granted_bytes_per_second"),
                   names_at(dataset, "jobs")});
    }
    return table.empty() ? "" : "\n" + table.text();
}

std::string jobs_text(const json::array& jobs) {
    Table table(
        {"JOB", "DATASET", "NODES", ">f*", ">PREDICTED", ">MEASURED", ">HITS", ">GRANTED", ">REMOTE", ">STALL"});
    for (const json::value& value : jobs) {
        const json::object& job = as_object(value);
        if (!flag_at(job, "running")) continue;
        table.add({text_at(job, "name"), text_at(job, "dataset"), names_at(job, "nodes"),
                   rate_at(job, "ideal_bytes_per_second"), rate_at(job, "predicted_bytes_per_second"),
                   rate_at(job, "measured_bytes_per_second"), part_at(job, "hit_ratio"),
                   rate_at(job, "bandwidth_bytes_per_second"), rate_at(job, "measured_remote_bytes_per_second"),
                   part_at(job, "stall_ratio")});
    }
    return table.empty() ? "\nno job runs\n" : "\n" + table.text();
}

Result<Look> look_at_cluster(const Context& context) {
    json::object all;
    for (const char* list : {"nodes", "datasets", "jobs"}) {
        auto answer = call_allocator(context, "GET", std::string("/v1/") + list);
        if (!answer) return std::unexpected(answer.error());
        all["plan"] = count_at(as_object(*answer), "plan");
        all[list] = array_at(as_object(*answer), list);
    }
    std::string text = nodes_text(array_at(all, "nodes")) + datasets_text(array_at(all, "datasets")) +
                       jobs_text(array_at(all, "jobs"));
    return Look{.json = std::move(all), .text = std::move(text)};
}

}  // namespace

int cluster_top(const Context& context, const LiveOptions& options) {
    return show_live(context, options, {}, [&context] { return look_at_cluster(context); });
}

}  // namespace larder::cli
