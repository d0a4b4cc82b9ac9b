// Any bytes as the body of an API request, of both daemons, in each version of the nodes' protocol. Accepted input is
// within its limits, refused input says why, and each daemon can read what the other writes.

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

void try_node_report(const boost::json::object& body, unsigned version) {
    const auto report = allocator::read_node_report(body, "body", version);
    if (!accepted(report)) return;
    const auto written = allocator::to_json(*report);
    const auto again = allocator::read_node_report(written, "written");
    LARDER_ASSERT(again);
    LARDER_ASSERT(boost::json::serialize(allocator::to_json(*again)) == boost::json::serialize(written));
}

void try_node_plan(const boost::json::object& body, unsigned version) {
    constexpr std::int64_t kNow_ns = 1'000'000'000;
    const auto plan = allocator::read_node_plan(body, "body", kNow_ns, version);
    if (!accepted(plan)) return;
    LARDER_ASSERT(allocator::read_node_plan(allocator::to_json(*plan, kNow_ns, version), "written", kNow_ns, version));
}

}  // namespace
}  // namespace larder

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace larder;
    const std::string body(reinterpret_cast<const char*>(data), size);
    const auto object = parse_json_object(body, "request body");
    if (!accepted(object)) return 0;
    try_dataset_request(*object);
    for (unsigned version = allocator::kProtocolOldest; version <= allocator::kProtocolNewest; ++version) {
        try_node_report(*object, version);
        try_node_plan(*object, version);
    }
    accepted(cache::read_quota(*object, "body"));
    accepted(cache::read_remote(*object, "body"));
    accepted(allocator::read_job_registration(*object, "body"));
    return 0;
}
