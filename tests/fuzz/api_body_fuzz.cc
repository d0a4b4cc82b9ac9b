// Any bytes as the body of an API request, of both daemons. Accepted input is within its limits, refused input says
// why, and each daemon can read what the other writes.

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include <cmath>
#include <cstdint>
#include <string>

#include "allocator/protocol/codec.h"
#include "base/assert.h"
#include "base/server/json_reader.h"
#include "cache/control/api_json.h"
#include "cache/control/dataset_request.h"
#include "cache/control/remote_json.h"
#include "cache/dataset/dataset_index.h"

namespace larder {
namespace {

template <typename Value>
bool accepted(const Result<Value>& result) {
    LARDER_ASSERT(result || !result.error().message.empty());
    return result.has_value();
}

void try_dataset_request(const boost::json::object& body) {
    const auto request = cache::read_dataset_request(body);
    if (!accepted(request)) return;
    const auto record = cache::check_dataset_request(*request, {.owner = 1, .group = 1});
    if (!accepted(record)) return;
    LARDER_ASSERT(cache::check_dataset_name(record->definition.name));
    LARDER_ASSERT(record->definition.tokens_per_sample <= cache::kTokensPerSampleMax);
}

void try_node_report(const boost::json::object& body) {
    const auto report = allocator::read_node_report(body, "body");
    if (!accepted(report)) return;
    const auto written = allocator::to_json(*report);
    const auto again = allocator::read_node_report(written, "written");
    LARDER_ASSERT(again);
    LARDER_ASSERT(boost::json::serialize(allocator::to_json(*again)) == boost::json::serialize(written));
}

}  // namespace
}  // namespace larder

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace larder;
    const std::string body(reinterpret_cast<const char*>(data), size);
    const auto object = parse_json_object(body, "request body");
    if (!accepted(object)) return 0;
    try_dataset_request(*object);
    try_node_report(*object);
    accepted(cache::read_quota(*object, "body"));
    accepted(cache::read_remote(*object, "body"));
    accepted(allocator::read_job_registration(*object, "body"));
    if (const auto plan = allocator::read_node_plan(*object, "body", 1'000'000'000); accepted(plan)) {
        LARDER_ASSERT(
            accepted(allocator::read_node_plan(allocator::to_json(*plan, 1'000'000'000), "written", 1'000'000'000)));
    }
    return 0;
}
