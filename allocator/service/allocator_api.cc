#include "allocator/service/allocator_api.h"

#include <boost/json.hpp>

#include <algorithm>
#include <utility>

#include "allocator/protocol/codec.h"
#include "base/server/json_http.h"
#include "base/server/logging.h"

namespace larder::allocator {
namespace {

// Planning takes at most 1 / kPlanningPart of the thread's time, however large the cluster is. If plans are slow, one
// plan serves several reports.
constexpr std::int64_t kPlanningPart = 5;
// Without a report, a new plan is made after this time, because nodes may have fallen silent.
constexpr std::int64_t kStale_ns = 1'000'000'000;

// Bandwidth moves from one node to another within two reports of each. A lease that stays cut for longer causes an
// event.
constexpr std::int64_t kHandover_ns = 5'000'000'000;

}  // namespace

AllocatorApi::AllocatorApi(Cluster& cluster, const Clock& clock)
    : cluster_(cluster), clock_(clock), started_ns_(clock.now_ns()) {}

void AllocatorApi::tick() {
    const bool stale = plan_is_due_ || clock_.now_ns() - planned_ns_ >= kStale_ns;
    if (stale && !cluster_.nodes().empty()) static_cast<void>(replan(false));
    if (extension_ != nullptr) extension_->tick();
    answer_waiting(false);
    push_to_streams();
}

void AllocatorApi::end_waits() {
    answer_waiting(true);
    streams_.end();
}

Result<void> AllocatorApi::replan(bool at_once) {
    const std::int64_t begun_ns = clock_.now_ns();
    if (!at_once && begun_ns < next_plan_ns_) return {};
    plan_is_due_ = false;
    const auto number = cluster_.replan(begun_ns);
    planned_ns_ = clock_.now_ns();
    next_plan_ns_ = planned_ns_ + (kPlanningPart - 1) * (planned_ns_ - begun_ns);
    if (!number) {
        ++counts_.plans_failed;
        return std::unexpected(number.error());
    }
    counts_.add_plan(planned_ns_ - begun_ns);
    watch_.compare_with_last(cluster_, planned_ns_);
    return {};
}

Result<void> AllocatorApi::take_report(const Asked& asked, std::string& node) {
    const auto object = request_object(asked.http);
    if (!object) return std::unexpected(object.error());
    const auto report = read_node_report(*object, "", asked.protocol);
    if (!report) return std::unexpected(report.error());
    node = report->node;
    const std::int64_t now_ns = clock_.now_ns();
    if (auto taken = cluster_.report(*report, now_ns); !taken) return taken;
    observed_.report(*report, now_ns);
    return {};
}

std::optional<HttpResponse> AllocatorApi::post_report(const Asked& asked) {
    std::string node;
    if (const auto taken = take_report(asked, node); !taken) {
        ++counts_.reports_refused;
        events_.add_seldom(EventKind::report_refused, node, taken.error().message, clock_.now_ns());
        return http_error(taken.error());
    }
    ++counts_.reports_taken;
    if (auto made = replan(!cluster_.planned_index(node)); !made) return http_error(made.error());
    return node_plan(node);
}

std::optional<HttpResponse> AllocatorApi::get_node_plan(const Asked& asked) {
    return node_plan(asked.name);
}

HttpResponse AllocatorApi::node_plan(const std::string& node) {
    const std::int64_t now_ns = clock_.now_ns();
    const auto part = cluster_.plan_for(node, now_ns);
    if (!part) return http_error(part.error());
    observed_.leased(node, part->lease, now_ns);
    const auto short_since_ns = observed_.lease_of(node)->short_since_ns;
    if (short_since_ns && now_ns - *short_since_ns >= kHandover_ns) {
        events_.add_seldom(EventKind::lease_cut, node,
                           "node \"" + node + "\" is leased less than planned: other nodes still hold the rest",
                           now_ns);
    }
    HttpResponse response = json_response(to_json(*part, now_ns));
    response.headers.emplace_back(kProtocolHeader, std::to_string(kProtocolNewest));
    return response;
}

}  // namespace larder::allocator
