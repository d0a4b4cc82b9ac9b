#include "cache/control/node_plan.h"

#include <boost/json.hpp>

#include <cmath>

#include "base/server/http_client.h"
#include "base/server/json_reader.h"

namespace larder::cache {
namespace json = boost::json;
namespace {

// Beyond these an answer is not from an allocator in its right mind.
constexpr std::uint64_t kLeaseMax_ms = 3'600'000;

Result<void> read_quotas(const json::array& quotas, std::map<std::string, Quota>& into) {
    for (std::size_t i = 0; i < quotas.size(); ++i) {
        const std::string at = "quotas[" + std::to_string(i) + "]";
        if (!quotas[i].is_object()) return fail(ErrorCode::protocol, at + " is not an object");
        JsonReader reader(quotas[i].as_object(), at);
        const std::string name = reader.string("name");
        into[name] = {.memory_bytes = reader.unsigned_integer("memory_bytes"),
                      .disk_bytes = reader.unsigned_integer("disk_bytes")};
        if (auto finished = reader.finish(); !finished) return finished;
    }
    return {};
}

Result<void> read_rates(const json::array& rates, std::map<std::string, double>& into) {
    for (std::size_t i = 0; i < rates.size(); ++i) {
        const std::string at = "lease.rates[" + std::to_string(i) + "]";
        if (!rates[i].is_object()) return fail(ErrorCode::protocol, at + " is not an object");
        JsonReader reader(rates[i].as_object(), at);
        const std::string job = reader.string("job");
        const double rate = reader.number("bytes_per_second");
        if (auto finished = reader.finish(); !finished) return finished;
        if (!std::isfinite(rate) || rate < 0) return fail(ErrorCode::protocol, at + ": no rate");
        into[job] = rate;
    }
    return {};
}

}  // namespace

Result<NodePlan> read_node_plan(std::string_view text, std::int64_t from_ns) {
    const auto object = parse_json_object(text, "the allocator's answer");
    if (!object) return std::unexpected(object.error());
    JsonReader reader(*object, "");
    NodePlan plan{.plan = reader.unsigned_integer("plan")};
    const json::array& quotas = reader.array("quotas");
    const json::object& lease = reader.object("lease");
    // Of an allocator that knows of no peers there are none.
    const json::array none;
    const json::array& peers = reader.has("peers") ? reader.array("peers") : none;
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    if (auto read = read_quotas(quotas, plan.quotas); !read) return std::unexpected(read.error());

    for (std::size_t i = 0; i < peers.size(); ++i) {
        const bool is_endpoint = peers[i].is_string() && parse_http_endpoint(peers[i].as_string()).has_value();
        if (!is_endpoint) return fail(ErrorCode::protocol, "peers[" + std::to_string(i) + "] is no endpoint");
        plan.peers.emplace_back(peers[i].as_string());
    }
    JsonReader lease_reader(lease, "lease");
    plan.lease = lease_reader.unsigned_integer("number");
    const std::uint64_t lease_ms = std::min(kLeaseMax_ms, lease_reader.unsigned_integer("lease_ms"));
    plan.rates.expires_ns = from_ns + static_cast<std::int64_t>(lease_ms) * 1'000'000;
    plan.rates.floor_bytes_per_second = lease_reader.number("floor_bytes_per_second");
    const json::array& rates = lease_reader.array("rates");
    plan.cut = lease_reader.optional_boolean("cut").value_or(false);
    if (auto finished = lease_reader.finish(); !finished) return std::unexpected(finished.error());
    if (auto read = read_rates(rates, plan.rates.rates); !read) return std::unexpected(read.error());
    return plan;
}

}  // namespace larder::cache
