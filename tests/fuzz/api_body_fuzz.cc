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
#include "cache/control/new_dataset.h"
#include "cache/control/remote_json.h"

namespace larder {
namespace {

template <typename Value>
bool taken(const Result<Value>& result) {
    LARDER_ASSERT(result || !result.error().message.empty());
    return result.has_value();
}

void wish(const boost::json::object& body) {
    const auto wish = cache::read_dataset_request(body);
    if (!taken(wish)) return;
    const auto dataset = cache::check_dataset_request(*wish, {.owner = 1, .group = 1});
    if (!taken(dataset)) return;
    LARDER_ASSERT(cache::check_dataset_name(dataset->record.name));
    LARDER_ASSERT(dataset->record.tokens_per_sample <= cache::kTokensPerSampleMax);
}

void report(const boost::json::object& body) {
    const auto report = allocator::read_node_report(body, "body");
    if (!taken(report)) return;
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
    if (!taken(object)) return 0;
    wish(*object);
    report(*object);
    taken(cache::read_quota(*object, "body"));
    taken(cache::read_remote(*object, "body"));
    taken(allocator::read_job_registration(*object, "body"));
    if (const auto plan = allocator::read_node_plan(*object, "body", 1'000'000'000); taken(plan)) {
        LARDER_ASSERT(
            taken(allocator::read_node_plan(allocator::to_json(*plan, 1'000'000'000), "written", 1'000'000'000)));
    }
    return 0;
}
