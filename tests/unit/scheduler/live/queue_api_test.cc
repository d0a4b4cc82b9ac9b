// Tests the answers of the API's routes. Also tests who may submit, cancel and read output, by role, user and token.

#include "scheduler/live/queue_api.h"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>

#include "scheduler/placement/free_pool.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/scheduler/live/memory_engine.h"

namespace larder::scheduler {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::UnorderedElementsAre;

// Another user than root for the lifetime of this object: as root, the API takes no jobs over TCP.
class OrdinaryUser {
public:
    OrdinaryUser() : before_(::geteuid()) {
        if (before_ != 0) return;
        EXPECT_EQ(::seteuid(65534), 0);
    }
    ~OrdinaryUser() { EXPECT_EQ(::seteuid(before_), 0); }
    OrdinaryUser(const OrdinaryUser&) = delete;
    OrdinaryUser& operator=(const OrdinaryUser&) = delete;

private:
    uid_t before_;
};

class QueueApiTest : public ::testing::Test {
protected:
    QueueApiTest() {
        LiveOptions options{
            .cluster = {.gpu_types = {"a100"}, .nodes = {{"n1", 0, 4, true}}},
            .tenants = {{.name = "default"}, {.name = "vision"}},
            .submit_rules = {{}, {.is_open = false, .uids = {1001}, .names = {"ci"}, .priority_max = 5}},
            .policy = std::move(make_policy("fifo", {}).value())};
        options.placer = std::make_unique<FreePool>(options.cluster);
        auto store = HistoryStore::open({.directory = directory / "state", .gpu_types = {"a100"}}).value();
        EXPECT_EQ(::chmod((directory / "state").c_str(), 0777), 0);
        EXPECT_EQ(::chmod(directory.path().c_str(), 0777), 0);
        const allocator::OnServiceThread on_thread = [this](LiveScheduler::Done call) -> LiveScheduler::Done {
            return [this, call = std::move(call)](const Result<void>& done) {
                const std::lock_guard lock(mutex);
                calls.push_back([call, done] { call(done); });
                changed.notify_all();
            };
        };
        auto made = std::make_unique<MemoryEngine>();
        made->output_directory = directory / "output";
        engine = made.get();
        api = std::make_unique<QueueApi>(
            QueueApi::Parts{.options = std::move(options), .store = std::move(store), .engine = std::move(made)},
            allocator::ExtensionContext{.cluster = cluster, .events = events, .clock = clock, .on_thread = on_thread});
    }

    // Makes the calls that come from the writer's thread until `is_done`.
    void make_calls_until(const std::function<bool()>& is_done) {
        while (!is_done()) {
            std::unique_lock lock(mutex);
            changed.wait(lock, [this] { return !calls.empty(); });
            const auto call = std::move(calls.front());
            calls.pop_front();
            lock.unlock();
            call();
            api->tick();
        }
    }

    // Asks, and makes calls until there is an answer.
    HttpResponse ask(HttpRequest request, const std::string& body = "") {
        request.body = body;
        std::optional<HttpResponse> answer;
        const auto routes = api->routes();
        for (std::size_t i = 0; i < routes.size(); ++i) {
            std::string segments;
            for (const std::string& segment : request.path) segments += "/" + segment;
            std::string pattern(routes[i].path);
            std::string name;
            if (const std::size_t at = pattern.find("{name}"); at != std::string::npos && request.path.size() > 2) {
                name = request.path[2];
                pattern.replace(at, 6, name);
            }
            if (routes[i].method != request.method || pattern != segments) continue;
            api->answer(i, request, name, [&](HttpResponse response) { answer = std::move(response); });
            make_calls_until([&] { return answer.has_value(); });
            return *answer;
        }
        ADD_FAILURE() << "no such route";
        return {};
    }
    static HttpRequest by_user(std::uint32_t uid, const std::string& method, std::vector<std::string> path) {
        HttpRequest request{.method = method, .path = std::move(path)};
        request.peer = PeerCredentials{.uid = uid, .gid = uid, .pid = 1};
        request.authenticated_as = "local user " + std::to_string(uid);
        return request;
    }
    static HttpRequest by_token(const std::string& name, const std::string& method, std::vector<std::string> path) {
        HttpRequest request{.method = method, .path = std::move(path), .peer_address = "10.0.0.7"};
        request.authenticated_as = name;
        return request;
    }
    static std::string job_body(const std::string& name, const std::string& rest = "") {
        return R"({"jobs":[{"name":")" + name + R"(","command":["true"],"directory":"/")" + rest + "}]}";
    }

    test::TempDirectory directory;
    ManualClock clock{1'000'000'000};
    allocator::Cluster cluster{{.remote_bytes_per_second = 1e9}};
    allocator::EventLog events;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> calls;
    MemoryEngine* engine = nullptr;  // owned by `api`
    std::unique_ptr<QueueApi> api;
};

std::set<std::string> keys_of(const HttpResponse& response) {
    std::set<std::string> keys;
    const json::value body = json::parse(response.body);
    for (const auto& member : body.as_object()) keys.emplace(member.key());
    return keys;
}

TEST_F(QueueApiTest, RoleThatRegistersJobsRunsNone) {
    constexpr auto kJob = static_cast<allocator::Roles>(allocator::Role::job);
    constexpr auto kSubmitter = static_cast<allocator::Roles>(allocator::Role::submitter);
    for (const auto& route : api->routes()) {
        if (route.path.ends_with("/drain")) {
            EXPECT_EQ(route.roles, static_cast<allocator::Roles>(allocator::Role::operator_)) << route.method;
            continue;
        }
        const bool acts = route.method != "GET" || route.path.ends_with("/output");
        EXPECT_EQ((route.roles & kJob) != 0, !acts) << route.method << " " << route.path;
        EXPECT_NE(route.roles & kSubmitter, 0) << route.method << " " << route.path;
    }
}

TEST_F(QueueApiTest, EachRouteOfAJobHasItsOwnAnswer) {
    ASSERT_EQ(ask(by_user(1001, "POST", {"v1", "queue"}), job_body("mine")).status, 200u);
    make_calls_until([this] { return !engine->starts.empty(); });
    const std::string output = engine->output_of(engine->starts[0].first, engine->starts[0].second);
    test::write_file(output, "epoch 1\nepoch 2\n");
    const auto shown = ask(by_user(1001, "GET", {"v1", "queue", "mine"}));
    EXPECT_THAT(keys_of(shown), IsSupersetOf({"name", "command", "log", "attempt"}));
    EXPECT_EQ(json::parse(shown.body).at("output").as_string(), output);
    const auto explained = ask(by_user(1001, "GET", {"v1", "queue", "mine", "why"}));
    EXPECT_THAT(keys_of(explained), UnorderedElementsAre("id", "name", "state", "binding", "why"));
    HttpRequest reads = by_user(1001, "GET", {"v1", "queue", "mine", "output"});
    EXPECT_EQ(ask(reads).body, "epoch 1\nepoch 2\n");
    reads.query = {{"attempt", "1"}, {"offset", "8"}};
    EXPECT_EQ(ask(reads).body, "epoch 2\n");
    reads.query = {{"attempt", "2"}};
    EXPECT_EQ(ask(reads).status, 404u);
    const json::value listed = json::parse(ask(by_user(1001, "GET", {"v1", "queue"})).body);
    EXPECT_EQ(listed.at("jobs").as_array().size(), 1u);
    EXPECT_FALSE(listed.at("jobs").at(0).as_object().contains("log"));
    EXPECT_THAT(keys_of(ask(by_user(1001, "GET", {"v1", "history"}))), UnorderedElementsAre("jobs"));
}

TEST_F(QueueApiTest, OutputThatIsNowhereIsNotFoundAndNotNamed) {
    engine->output_directory = "";
    ASSERT_EQ(ask(by_user(1001, "POST", {"v1", "queue"}), job_body("mine")).status, 200u);
    make_calls_until([this] { return !engine->starts.empty(); });
    engine->tell(EngineEvent::Kind::started, engine->starts[0]);
    api->tick();
    const auto explained = ask(by_user(1001, "GET", {"v1", "queue", "mine", "why"}));
    EXPECT_THAT(explained.body, HasSubstr("only its GPUs are known to limit it.\""));
    const auto output = ask(by_user(1001, "GET", {"v1", "queue", "mine", "output"}));
    EXPECT_EQ(output.status, 404u);
    EXPECT_THAT(output.body, HasSubstr("the output of job 1 (mine) is not kept here, but by its cluster manager"));
}

TEST_F(QueueApiTest, JobOfATokenBelongsToThatToken) {
    const OrdinaryUser user;
    const auto submitted = ask(by_token("ci", "POST", {"v1", "queue"}), job_body("theirs"));
    ASSERT_EQ(submitted.status, 200u) << submitted.body;
    for (const char* route : {"", "output"}) {
        const std::string method = *route == 0 ? "DELETE" : "GET";
        std::vector<std::string> path{"v1", "queue", "theirs"};
        if (*route != 0) path.emplace_back(route);
        EXPECT_EQ(ask(by_token("cd", method, path)).status, 403u) << route;
        EXPECT_EQ(ask(by_token("", method, path)).status, 403u) << route;
        EXPECT_EQ(ask(by_user(1001, method, path)).status, 403u) << route;
    }
    const json::value shown = json::parse(ask(by_token("cd", "GET", {"v1", "queue", "theirs"})).body);
    EXPECT_EQ(shown.at("submitter").as_string(), "ci");
    EXPECT_EQ(ask(by_token("ci", "GET", {"v1", "queue", "theirs", "output"})).status, 200u);
    EXPECT_EQ(ask(by_token("ci", "DELETE", {"v1", "queue", "theirs"})).status, 200u);
    ASSERT_EQ(ask(by_token("ci", "POST", {"v1", "queue"}), job_body("again")).status, 200u);
    HttpRequest by_operator = by_token("ann", "DELETE", {"v1", "queue", "again"});
    by_operator.is_operator = true;
    EXPECT_EQ(ask(by_operator).status, 200u);
}

TEST_F(QueueApiTest, JobOfAUserBelongsToThatUser) {
    ASSERT_EQ(ask(by_user(1001, "POST", {"v1", "queue"}), job_body("mine")).status, 200u);
    const json::value listed = json::parse(ask(by_user(1002, "GET", {"v1", "queue"})).body);
    EXPECT_EQ(listed.at("jobs").at(0).at("submitter").as_string(), "local user 1001");
    EXPECT_EQ(ask(by_user(1002, "DELETE", {"v1", "queue", "mine"})).status, 403u);
    EXPECT_EQ(ask(by_token("ci", "DELETE", {"v1", "queue", "mine"})).status, 403u);
    EXPECT_EQ(ask(by_user(1001, "DELETE", {"v1", "queue", "mine"})).status, 200u);
}

TEST_F(QueueApiTest, AllocatorOfRootRunsNoJobsOfUnknownUsers) {
    if (::geteuid() != 0) GTEST_SKIP() << "only for an allocator that runs as root";
    const auto refused = ask(by_token("ci", "POST", {"v1", "queue"}), job_body("theirs"));
    EXPECT_EQ(refused.status, 403u);
    EXPECT_THAT(refused.body, HasSubstr("submit on the Unix socket"));
}

TEST_F(QueueApiTest, SubmitterIsCheckedAgainstTheRulesOfTheTenant) {
    const std::string tenant = R"(,"tenant":"vision")";
    EXPECT_EQ(ask(by_user(1001, "POST", {"v1", "queue"}), job_body("a", tenant)).status, 200u);
    const auto refused = ask(by_user(1002, "POST", {"v1", "queue"}), job_body("b", tenant));
    EXPECT_EQ(refused.status, 403u);
    EXPECT_THAT(refused.body, HasSubstr("you may not submit for tenant"));
    EXPECT_EQ(ask(by_user(1002, "POST", {"v1", "queue"}), job_body("b")).status, 200u) << "default is open";
    EXPECT_EQ(ask(by_user(1001, "POST", {"v1", "queue"}), job_body("c", tenant + R"(,"priority":6)")).status, 403u);
    HttpRequest by_operator = by_user(0, "POST", {"v1", "queue"});
    by_operator.is_operator = true;
    EXPECT_EQ(ask(by_operator, job_body("d", tenant + R"(,"priority":6)")).status, 200u);
    const OrdinaryUser user;
    HttpRequest by_agent = by_token("slurm", "POST", {"v1", "queue"});
    by_agent.is_agent = true;
    EXPECT_EQ(ask(by_agent, job_body("g", tenant)).status, 403u) << "no agent runs the jobs of this allocator";
    EXPECT_EQ(ask(by_token("ci", "POST", {"v1", "queue"}), job_body("e", tenant)).status, 200u);
    EXPECT_EQ(ask(by_token("cd", "POST", {"v1", "queue"}), job_body("f", tenant)).status, 403u);
}

TEST_F(QueueApiTest, DrainedNodeIsListedWithItsJobsUntilItIsTakenBack) {
    ASSERT_EQ(ask(by_user(1001, "POST", {"v1", "queue"}), job_body("mine")).status, 200u);
    make_calls_until([this] { return !engine->starts.empty(); });
    const auto answer = ask(by_token("ops", "PUT", {"v1", "gpu-nodes", "n1", "drain"}));
    ASSERT_EQ(answer.status, 200u) << answer.body;
    const json::value drained = json::parse(answer.body);
    EXPECT_EQ(drained.at("jobs").as_int64(), 1);
    EXPECT_EQ(drained.at("drained").at("by").as_string(), "ops");
    const auto node = [this] {
        return json::parse(ask(by_user(1001, "GET", {"v1", "gpu-nodes"})).body).at("nodes").at(0);
    };
    EXPECT_EQ(node().at("drained").at("by").as_string(), "ops");
    EXPECT_FALSE(node().at("is_usable").as_bool());
    EXPECT_EQ(node().at("jobs").as_int64(), 1);
    EXPECT_EQ(ask(by_token("dan", "PUT", {"v1", "gpu-nodes", "n1", "drain"})).status, 200u);
    EXPECT_EQ(node().at("drained").at("by").as_string(), "ops") << "the first one drained it";
    EXPECT_EQ(ask(by_token("dan", "DELETE", {"v1", "gpu-nodes", "n1", "drain"})).status, 200u);
    EXPECT_FALSE(node().as_object().contains("drained"));
    EXPECT_TRUE(node().at("is_usable").as_bool());
    EXPECT_EQ(ask(by_token("dan", "DELETE", {"v1", "gpu-nodes", "n1", "drain"})).status, 404u);
    EXPECT_EQ(ask(by_token("dan", "PUT", {"v1", "gpu-nodes", "n9", "drain"})).status, 404u);
    EXPECT_EQ(events.count(allocator::EventKind::node_drained), 1u);
    EXPECT_EQ(events.count(allocator::EventKind::node_undrained), 1u);
}

}  // namespace
}  // namespace larder::scheduler
