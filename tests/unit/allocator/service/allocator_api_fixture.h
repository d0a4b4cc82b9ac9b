#pragma once

// An AllocatorApi with its own cluster and a clock that the test advances. Tests send it whole requests, as an operator
// unless they say otherwise.

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "allocator/protocol/codec.h"
#include "allocator/service/allocator_api.h"
#include "base/clock.h"
#include "tests/support/test_units.h"

namespace larder::allocator {

using test::kSecond_ns;

// A node with 10 GB of memory and 90 GB of disk, and four ranks of "vision" on the 200 GB of "images".
inline NodeReport report_of(const std::string& node) {
    return {.node = node,
            .instance = 0xffff'ffff'ffff'ffff,
            .gpus = 8,
            .memory_bytes = 10'000'000'000,
            .disk_bytes = 90'000'000'000,
            .nic_bytes_per_second = 12.5e9,
            .datasets = {{.name = "images", .size_bytes = 200'000'000'000, .cached_disk_bytes = 5}},
            .jobs = {{.name = "vision",
                      .dataset = "images",
                      .ranks = 4,
                      .bytes = 77,
                      .busy_s = 1.5,
                      .demand_bytes_per_second = 2e9,
                      .remote_bytes = 7,
                      .unread_bytes = 90'000'000'000,
                      .unread_cached_bytes = 40'000'000'000}}};
}

class AllocatorApiTest : public testing::Test {
protected:
    ManualClock clock{1'000'000'000};
    Cluster cluster{{.remote_bytes_per_second = 1e9}};
    AllocatorApi api{cluster, clock};

    static HttpRequest request(const std::string& method, const std::vector<std::string>& path,
                               const std::string& body = "", const std::map<std::string, std::string>& query = {}) {
        HttpRequest request;
        request.method = method;
        request.path = path;
        request.query = query;
        request.body = body;
        request.is_operator = true;
        return request;
    }
    // Status 0 means that there is no answer yet.
    HttpResponse ask(const std::string& method, const std::vector<std::string>& path, const std::string& body = "",
                     const std::map<std::string, std::string>& query = {}) {
        HttpResponse given;
        given.status = 0;
        api.handle(request(method, path, body, query), [&](HttpResponse response) { given = std::move(response); });
        return given;
    }
    // Lets time pass without reports, with the ticks of a service that runs.
    void pass(std::int64_t duration_ns) {
        constexpr std::int64_t kTick_ns = 100'000'000;
        for (; duration_ns > 0; duration_ns -= kTick_ns) {
            clock.advance_ns(std::min(duration_ns, kTick_ns));
            api.tick();
        }
    }
    HttpResponse answer_to(const HttpRequest& asked) {
        HttpResponse given;
        given.status = 0;
        api.handle(asked, [&](HttpResponse response) { given = std::move(response); });
        return given;
    }
    // As a user on the Unix socket without the role of an operator.
    HttpResponse ask_as_user(std::uint32_t uid, const std::string& method, const std::vector<std::string>& path,
                             const std::string& body = "") {
        HttpRequest asked = request(method, path, body);
        asked.is_operator = false;
        asked.peer = PeerCredentials{.uid = uid, .gid = uid, .pid = 1};
        return answer_to(asked);
    }
    // Over TCP, without the role of an operator.
    HttpResponse ask_with_token(const std::string& name, const std::string& method,
                                const std::vector<std::string>& path, const std::string& body = "") {
        HttpRequest asked = request(method, path, body);
        asked.is_operator = false;
        asked.authenticated_as = name;
        return answer_to(asked);
    }
    HttpResponse report(const NodeReport& sent) {
        return ask("POST", {"v1", "reports"}, boost::json::serialize(to_json(sent)));
    }
    static boost::json::object object(const HttpResponse& response) {
        return boost::json::parse(response.body).as_object();
    }
    static std::string message(const HttpResponse& response) {
        return std::string(object(response).at("error").at("message").as_string());
    }
    // Returns the only entry of GET /v1/LIST.
    boost::json::object only(const std::string& list) {
        const HttpResponse response = ask("GET", {"v1", list});
        EXPECT_EQ(response.status, 200u) << response.body;
        const boost::json::array things = object(response).at(list).as_array();
        EXPECT_EQ(things.size(), 1u) << response.body;
        return things.empty() ? boost::json::object() : things[0].as_object();
    }
};

}  // namespace larder::allocator
