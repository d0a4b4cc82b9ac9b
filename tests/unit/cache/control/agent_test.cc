// The node's allocator agent: the protocol version it speaks, and how it reacts when another allocator takes over.

#include "cache/control/agent.h"

#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "allocator/protocol/codec.h"
#include "base/server/json_text.h"
#include "tests/support/http_service.h"
#include "tests/support/test_daemon.h"

namespace larder::test {
namespace {

// An allocator that gives every node an empty plan.
class PlainAllocator {
public:
    static constexpr std::uint64_t kPeersEtag = 9;

    // 0 means that the allocator names no version, as allocators that know only version 1 do.
    explicit PlainAllocator(unsigned newest_protocol) : newest_(newest_protocol) {}

    void set_newest(unsigned version) {
        const std::scoped_lock lock(mutex_);
        newest_ = version;
    }
    // The protocol version of each report so far, 0 if the report named none.
    std::vector<unsigned> versions() const {
        const std::scoped_lock lock(mutex_);
        return versions_;
    }
    // The etag of the list of peers that the last report named.
    std::optional<std::uint64_t> peers_etag() const {
        const std::scoped_lock lock(mutex_);
        return peers_etag_;
    }
    std::string socket() const { return service_.socket; }

private:
    HttpResponse answer(const HttpRequest& request) {
        const std::scoped_lock lock(mutex_);
        const auto named = request.query.find(allocator::kProtocolQuery);
        const unsigned version = named == request.query.end() ? 0 : static_cast<unsigned>(std::stoul(named->second));
        versions_.push_back(version);
        if (version > newest_) return http_error(400, "invalid_argument", "there is no query key \"protocol\"");
        const auto report =
            allocator::read_node_report(parse_json_object(request.body, "it").value(), "", std::max(1u, version));
        peers_etag_ = report ? report->peers_etag : std::nullopt;
        allocator::NodePlan part{
            .plan = 1, .quotas = {}, .peers = {}, .peers_etag = kPeersEtag, .lease = {}, .warm = {}};
        if (peers_etag_ != kPeersEtag) part.peers.emplace();
        auto plan = allocator::to_json(part, 0, std::max(1u, version));
        if (newest_ == 0) plan.erase("peers");
        HttpResponse response{.body = json_text(plan)};
        if (newest_ > 0) response.headers.emplace_back(allocator::kProtocolHeader, std::to_string(newest_));
        return response;
    }

    mutable std::mutex mutex_;
    unsigned newest_;
    std::optional<std::uint64_t> peers_etag_;
    std::vector<unsigned> versions_;
    HttpService service_{[this](const HttpRequest& request, const HttpRespond& respond) { respond(answer(request)); }};
};

TEST(AllocatorAgent, SpeaksTheNewestVersionThatBothKnow) {
    PlainAllocator allocator(7);
    TestDaemon daemon([&](cache::DaemonConfig& config) { config.allocator.endpoint = allocator.socket(); });
    const auto status = [&] { return daemon.get("/v1/status").body.at("allocator"); };
    TestDaemon::wait_until([&] { return allocator.versions().size() >= 2; });
    EXPECT_EQ(allocator.versions()[0], 0u) << "the oldest version, until the allocator has named its newest";
    EXPECT_EQ(allocator.versions()[1], allocator::kProtocolNewest);
    // An allocator of an earlier version takes over.
    allocator.set_newest(0);
    TestDaemon::wait_until([&] { return number_at(status(), "failures") == 1; });
    TestDaemon::wait_until([&] { return status().at("connected").as_bool(); });
    EXPECT_EQ(allocator.versions().back(), 0u);
    EXPECT_EQ(number_at(status(), "failures"), 1u);
}

TEST(AllocatorAgent, NamesTheListOfPeersThatItHas) {
    PlainAllocator allocator(allocator::kProtocolNewest);
    TestDaemon daemon([&](cache::DaemonConfig& config) { config.allocator.endpoint = allocator.socket(); });
    TestDaemon::wait_until([&] { return allocator.peers_etag() == PlainAllocator::kPeersEtag; });
    const std::size_t reports = allocator.versions().size();
    TestDaemon::wait_until([&] { return allocator.versions().size() > reports; });
    EXPECT_EQ(allocator.peers_etag(), PlainAllocator::kPeersEtag) << "an answer without the list leaves it in force";
    // An allocator of an earlier version takes over and sends lists, and then one of this version.
    allocator.set_newest(allocator::kProtocolNewest - 1);
    TestDaemon::wait_until([&] { return allocator.versions().back() == allocator::kProtocolNewest - 1; });
    EXPECT_EQ(allocator.peers_etag(), std::nullopt);
    allocator.set_newest(allocator::kProtocolNewest);
    TestDaemon::wait_until([&] { return allocator.peers_etag() == PlainAllocator::kPeersEtag; });
}

}  // namespace
}  // namespace larder::test
