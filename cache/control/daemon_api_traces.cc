// DaemonApi: /v1/jobs/{name}/trace.

#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "base/server/json_reader.h"
#include "cache/control/api_json.h"
#include "cache/control/daemon_api.h"

namespace larder::cache {
namespace json = boost::json;
namespace {

using protocol::BlockSource;
using protocol::BlockStatus;

// The API's names.
std::string_view name(BlockStatus status) {
    switch (status) {
        case BlockStatus::ok: return "ok";
        case BlockStatus::remote_failed: return "remote_failed";
        case BlockStatus::object_missing: return "object_missing";
        case BlockStatus::object_changed: return "object_changed";
        case BlockStatus::object_truncated: return "object_truncated";
        case BlockStatus::object_corrupt: return "object_corrupt";
    }
    return "unknown";
}

json::value source_json(BlockSource source) {
    switch (source) {
        case BlockSource::memory: return "memory";
        case BlockSource::disk: return "disk";
        case BlockSource::remote: return "remote";
        case BlockSource::peer: return "peer";
        case BlockSource::none: break;
    }
    return nullptr;
}

json::value admitted_json(Admitted admitted) {
    switch (admitted) {
        case Admitted::memory: return "memory";
        case Admitted::disk: return "disk";
        case Admitted::no: break;
    }
    return nullptr;
}

// A time since the trace began; null for a time that had not come.
json::value since_json(std::int64_t at_ns, std::int64_t began_ns) {
    return at_ns == 0 ? json::value() : json::value(at_ns - began_ns);
}

json::object block_json(const BlockTrace& block, const std::string& dataset, std::int64_t began_ns) {
    json::array steps;
    for (std::size_t i = 0; i < block.span_count; ++i) {
        const TraceSpan& span = block.spans[i];
        steps.push_back(json::object{{"step", name(span.step)},
                                     {"began_ns", span.began_ns - began_ns},
                                     {"ended_ns", since_json(span.ended_ns, began_ns)}});
    }
    const bool is_delivered = block.delivered_ns != 0;
    return {{"dataset", dataset},
            {"block", block.block},
            {"bytes", block.payload_bytes},
            {"epoch", block.epoch},
            {"status", is_delivered ? json::value(name(block.status)) : json::value()},
            {"errno", block.system_errno},
            {"source", source_json(block.source)},
            {"admitted", admitted_json(block.admitted)},
            {"joined", block.joined},
            {"tries", block.tries},
            {"taken_ns", block.taken_ns - began_ns},
            {"delivered_ns", since_json(block.delivered_ns, began_ns)},
            {"steps", std::move(steps)},
            {"steps_lost", block.spans_lost}};
}

std::int64_t percentile(const std::vector<std::int64_t>& sorted, std::size_t percent) {
    return sorted[(sorted.size() - 1) * percent / 100];
}

// The sums of each step that occurred. What had not ended counts until the end of the trace.
json::array steps_json(const TracedBlocks& traced) {
    std::array<std::vector<std::int64_t>, kTraceSteps> durations_ns;
    double waited_ns = 0;
    for (const BlockTrace& block : traced.blocks) {
        const auto end_or = [&](std::int64_t at_ns) { return at_ns != 0 ? at_ns : traced.ended_ns; };
        waited_ns += static_cast<double>(end_or(block.delivered_ns) - block.taken_ns);
        for (std::size_t i = 0; i < block.span_count; ++i) {
            const TraceSpan& span = block.spans[i];
            durations_ns[static_cast<std::size_t>(span.step)].push_back(end_or(span.ended_ns) - span.began_ns);
        }
    }
    json::array steps;
    for (std::size_t i = 0; i < kTraceSteps; ++i) {
        if (durations_ns[i].empty()) continue;
        std::ranges::sort(durations_ns[i]);
        double sum_ns = 0;
        for (const std::int64_t duration_ns : durations_ns[i]) sum_ns += static_cast<double>(duration_ns);
        const auto step = static_cast<TraceStep>(i);
        const bool has_share = !is_after_delivery(step) && waited_ns > 0;
        steps.push_back(json::object{{"step", name(step)},
                                     {"part_of_read", is_part_of_read(step)},
                                     {"count", durations_ns[i].size()},
                                     {"median_ns", percentile(durations_ns[i], 50)},
                                     {"p99_ns", percentile(durations_ns[i], 99)},
                                     {"share", has_share ? json::value(sum_ns / waited_ns) : json::value()}});
    }
    return steps;
}

json::object trace_json(const std::string& job, const TracedBlocks& traced, Node& node) {
    json::array blocks;
    blocks.reserve(traced.blocks.size());
    for (const BlockTrace& block : traced.blocks) {
        const NodeDataset* const dataset = node.datasets().find(block.dataset_id);
        // A dataset that was removed meanwhile has no name.
        blocks.push_back(block_json(block, dataset == nullptr ? "" : dataset->record.definition.name, traced.began_ns));
    }
    return {{"job", job},
            {"began_unix_ns", unix_time_ns() - (node.now_ns() - traced.began_ns)},
            {"duration_ns", traced.ended_ns - traced.began_ns},
            {"ended_by", traced.is_full ? "blocks" : "time"},
            {"steps", steps_json(traced)},
            {"blocks", std::move(blocks)}};
}

Result<BlockTraces::Request> read_trace_request(const std::string& job, const HttpRequest& http) {
    if (auto checked = check_job_name(job); !checked) return std::unexpected(checked.error());
    BlockTraces::Request request{.job = job};
    const auto object = request_object(http);
    if (!object) return std::unexpected(object.error());
    JsonReader reader(*object, "request body");
    if (reader.has("seconds")) request.seconds = reader.number("seconds");
    request.blocks = reader.optional_unsigned_integer("blocks").value_or(request.blocks);
    if (request.seconds <= 0 || request.seconds > BlockTraces::kSecondsMax) {
        reader.reject("seconds", "must be more than 0, and 60 at most");
    }
    if (request.blocks == 0 || request.blocks > BlockTraces::kBlocksMax) {
        reader.reject("blocks", "must be 1 to 5000");
    }
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    return request;
}

}  // namespace

void DaemonApi::post_trace(const Asked& asked, const HttpRespond& respond) {
    const auto request = read_trace_request(asked.name, asked.http);
    if (!request) return respond(http_error(request.error()));
    const auto started =
        node_.traces().start(*request, [this, respond, job = asked.name](const Result<TracedBlocks>& traced) {
            if (!traced) return respond(http_error(traced.error()));
            respond(json_response(trace_json(job, *traced, node_)));
        });
    if (!started) return respond(http_error(started.error()));
    if (asked.http.on_gone) asked.http.on_gone([this, number = *started] { node_.traces().stop(number); });
}

}  // namespace larder::cache
