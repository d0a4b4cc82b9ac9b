#include "cache/control/allocator_answer.h"

#include <boost/json.hpp>

#include "allocator/protocol/codec.h"
#include "base/server/http_client.h"
#include "base/server/json_reader.h"

namespace larder::cache {

Result<AllocatorAnswer> read_allocator_answer(std::string_view text, unsigned version, std::int64_t from_ns) {
    const auto object = parse_json_object(text, "the allocator's answer");
    if (!object) return std::unexpected(object.error());
    auto plan = allocator::read_node_plan(*object, "", from_ns, version);
    if (!plan) return std::unexpected(plan.error());
    AllocatorAnswer answer{.plan = plan->plan,
                           .quotas = {},
                           .lease = plan->lease.number,
                           .rates = {},
                           .peers = {},
                           .cut = plan->lease.cut};
    for (const allocator::DatasetQuota& quota : plan->quotas) {
        answer.quotas[quota.name] = {.memory_bytes = quota.memory_bytes, .disk_bytes = quota.disk_bytes};
    }
    for (const allocator::LeasedRate& rate : plan->lease.rates) answer.rates.rates[rate.job] = rate.bytes_per_second;
    answer.rates.floor_bytes_per_second = plan->lease.floor_bytes_per_second;
    answer.rates.expires_ns = plan->lease.expires_ns;
    for (std::size_t i = 0; i < plan->peers.size(); ++i) {
        if (!parse_http_endpoint(plan->peers[i])) {
            return fail(ErrorCode::protocol, "peers[" + std::to_string(i) + "] is not an endpoint");
        }
    }
    answer.peers = std::move(plan->peers);
    return answer;
}

}  // namespace larder::cache
