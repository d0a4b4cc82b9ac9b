#include "cache/control/agent.h"

#include <boost/asio/post.hpp>
#include <boost/json.hpp>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "allocator/protocol/codec.h"
#include "base/server/json_text.h"
#include "base/server/logging.h"

namespace larder::cache {
namespace asio = boost::asio;
namespace json = boost::json;
namespace {

constexpr std::chrono::milliseconds kTickInterval{100};
constexpr std::int64_t kReportInterval_ns = 1'000'000'000;
// The shortest interval between reports, used while something waits for one, such as a new job at the floor.
constexpr std::int64_t kReportIntervalMin_ns = 200'000'000;
constexpr std::int64_t kAnswerTimeout_ms = 2'000;
constexpr std::int64_t kAllocatorStartGrace_ns = 10'000'000'000;

// The newest version of the protocol that this node and the allocator know. An allocator that sends no version knows
// only the oldest.
unsigned common_protocol(const HttpResponse& response) {
    const auto named = std::ranges::find(response.headers, allocator::kProtocolHeader,
                                         [](const auto& header) { return header.first; });
    if (named == response.headers.end()) return allocator::kProtocolOldest;
    const auto allocator_version = allocator::parse_protocol(named->second, std::numeric_limits<unsigned>::max());
    return std::min(allocator_version.value_or(allocator::kProtocolOldest), allocator::kProtocolNewest);
}

}  // namespace

AllocatorAgent::AllocatorAgent(asio::io_context& context, Node& node, std::uint64_t state_directory)
    : context_(context),
      node_(node),
      timer_(context),
      reporter_(state_directory),
      protocol_(allocator::kProtocolOldest),
      client_(node.config().allocator.endpoint),
      requests_("larder-agent") {
    if (node.config().allocator.rates)
        node_.lease({.floor_bytes_per_second = node.config().allocator.floor_bytes_per_second});
}

AllocatorAgent::~AllocatorAgent() = default;

void AllocatorAgent::start() {
    log_info("an allocator manages this node",
             {{"endpoint", node_.config().allocator.endpoint}, {"node", node_.config().allocator.node}});
    started_ns_ = clock_.now_ns();
    wait();
}

void AllocatorAgent::stop() {
    timer_.cancel();
}

void AllocatorAgent::wait() {
    timer_.expires_after(kTickInterval);
    timer_.async_wait([this](const boost::system::error_code& error) {
        if (error) return;
        tick();
        wait();
    });
}

void AllocatorAgent::tick() {
    const bool rates = node_.config().allocator.rates;
    if (rates) node_.expire_lease();
    const std::int64_t now_ns = clock_.now_ns();
    const bool report_soon =
        report_early_ || node_.any_quota_unassigned() || (rates && node_.job_limits().any_unleased());
    const std::int64_t period_ns = report_soon ? kReportIntervalMin_ns : kReportInterval_ns;
    if (report_in_flight_ || now_ns - reported_ns_ < period_ns) return;
    report_in_flight_ = true;
    reported_ns_ = now_ns;
    report();
}

void AllocatorAgent::report() {
    node_.collect([this](const Result<ShardStatistics>& statistics) {
        if (!statistics) {
            report_in_flight_ = false;
            return;
        }
        std::vector<ReportedDataset> datasets;
        const Quota changing = node_.changing_quota();
        const auto remaining = [](std::uint64_t total, std::uint64_t used) { return total - std::min(total, used); };
        const Quota room{.memory_bytes = remaining(node_.config().memory_bytes, changing.memory_bytes),
                         .disk_bytes = remaining(node_.config().disk_bytes, changing.disk_bytes)};
        for (const auto& [name, dataset] : node_.datasets()) {
            datasets.push_back({.report = {.name = name,
                                           .quota_memory_bytes = dataset.record.quota.memory_bytes,
                                           .quota_disk_bytes = dataset.record.quota.disk_bytes,
                                           .quota_held = dataset.record.quota_held},
                                .payload_bytes = dataset.bytes(),
                                .blocks = dataset.newest().manifest->block_count()});
        }
        const std::int64_t now_ns = clock_.now_ns();
        const ReportedPeers peers{.group = node_.config().peers.group,
                                  .endpoint = node_.peers() == nullptr ? "" : node_.peers()->endpoint()};
        send(json_text(allocator::to_json(
                 reporter_.make(node_.config().allocator, room, datasets, *statistics, lease_applied_, now_ns, peers))),
             now_ns);
    });
}

void AllocatorAgent::send(std::string body, std::int64_t now_ns) {
    std::string target = "/v1/reports";
    if (protocol_ > allocator::kProtocolOldest) {
        target += std::string("?") + allocator::kProtocolQuery + "=" + std::to_string(protocol_);
    }
    requests_.post([this, target = std::move(target), body = std::move(body), now_ns] {
        auto options = http_client_options(node_.config().allocator.credentials);
        if (options) options->timeout_ms = kAnswerTimeout_ms;
        auto response = options ? client_.request("POST", target, body, *options)
                                : Result<HttpResponse>(std::unexpected(options.error()));
        asio::post(context_, [this, response = std::move(response), now_ns] { handle_answer(response, now_ns); });
    });
}

void AllocatorAgent::handle_answer(const Result<HttpResponse>& response, std::int64_t sent_ns) {
    report_in_flight_ = false;
    const Result<void> applied = response ? apply(*response, sent_ns) : std::unexpected(response.error());
    ++(applied ? status_.reports : status_.failures);
    if (applied && !status_.connected) {
        log_info("the allocator answers", {{"plan", status_.plan}});
    }
    if (applied) {
        last_warning_.clear();
    } else {
        log_problem(applied.error());
    }
    status_.connected = applied.has_value();
    status_.problem = applied ? "" : applied.error().message;
}

// Warns only after a grace period if the allocator never answered: daemons and allocator may start in any order.
void AllocatorAgent::log_problem(const Error& error) {
    const bool waits = status_.reports == 0 && error.code == ErrorCode::unavailable &&
                       clock_.now_ns() - started_ns_ < kAllocatorStartGrace_ns;
    if (waits) {
        if (!std::exchange(logged_waiting_, true)) log_info("waiting for the allocator", {{"reason", error.message}});
    } else if (last_warning_ != error.message) {
        log_warn("no valid answer from the allocator: quotas stay, rates fall to the floor when the lease ends",
                 {{"error", error.message}});
        last_warning_ = error.message;
    }
}

Result<void> AllocatorAgent::apply(const HttpResponse& response, std::int64_t sent_ns) {
    // The allocator may have been replaced by one of another version: after a refusal, start again with the oldest
    // protocol.
    const unsigned protocol = std::exchange(protocol_, allocator::kProtocolOldest);
    if (response.status != 200) return std::unexpected(error_of_response(response));
    protocol_ = common_protocol(response);
    auto answer = read_allocator_answer(response.body, protocol, sent_ns);
    if (!answer) return std::unexpected(answer.error());
    status_.plan = answer->plan;
    node_.set_peers(std::move(answer->peers));
    if (!node_.config().allocator.rates) return node_.apply_plan(answer->quotas, sent_ns);
    // Other nodes rely on these rates, so apply them even if the quotas do not fit.
    lease_applied_ = answer->lease;
    // Report again soon: other nodes can use the bandwidth this node gives up only once it has reported, and the part
    // of its plan that was held back may soon be free.
    report_early_ = answer->cut || node_.job_limits().exceeds_lease(answer->rates);
    status_.lease_expires_ns = answer->rates.expires_ns;
    node_.lease(std::move(answer->rates));
    return node_.apply_plan(answer->quotas, sent_ns);
}

}  // namespace larder::cache
