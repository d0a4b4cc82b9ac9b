// The HTTP API of a daemon in this process.

#include "cache/control/daemon_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/sample_data.h"
#include "tests/support/test_daemon.h"
#include "tests/support/test_units.h"

namespace larder::test {
namespace {

namespace json = boost::json;
using testing::HasSubstr;
using testing::StartsWith;

class ApiTest : public testing::Test {
protected:
    std::string make_files(const std::string& name = "tree") {
        files = make_tree(daemon.state / name, {.class_count = 2, .files_per_class = 5});
        total_bytes = 0;
        for (const NamedBytes& file : files) total_bytes += file.content.size();
        return daemon.state / name;
    }

    TestDaemon daemon;
    std::vector<NamedBytes> files;
    std::uint64_t total_bytes = 0;
};

TEST_F(ApiTest, StatusReportsProcessAndCapacity) {
    const auto status = daemon.get("/v1/status");
    EXPECT_EQ(status.status, 200u);
    EXPECT_EQ(number_at(status.body, "pid"), static_cast<std::uint64_t>(::getpid()));
    EXPECT_EQ(number_at(status.body, "memory_bytes"), 64 * kMiB);
    EXPECT_EQ(number_at(status.body, "disk_bytes"), 256 * kMiB);
    EXPECT_EQ(number_at(status.body, "data_plane_threads"), 1u);
    EXPECT_EQ(number_at(status.body, "datasets"), 0u);
    EXPECT_EQ(number_at(status.body, "sessions"), 0u);
    EXPECT_NE(text_at(status.body, "version"), "");
    EXPECT_GE(status.body.at("uptime_s").to_number<double>(), 0);
    EXPECT_EQ(daemon.get("/healthz").text, "ok\n");
}

TEST_F(ApiTest, DatasetCanBeAddedListedRemovedAndAddedAgain) {
    const std::string root = make_files();
    const auto task = daemon.finished(daemon.post(
        "/v1/datasets",
        {{"name", "d"}, {"url", "file://" + root}, {"format", "raw"}, {"mode", "0604"}, {"owner", "12345"}}));
    ASSERT_EQ(text_at(task, "state"), "done") << json::serialize(task);
    EXPECT_EQ(text_at(task, "kind"), "add");
    EXPECT_EQ(text_at(task, "dataset"), "d");
    EXPECT_EQ(text_at(task, "unit"), "objects");
    EXPECT_EQ(number_at(task, "done"), files.size());
    EXPECT_EQ(number_at(task.at("result"), "samples"), files.size());

    const auto dataset = daemon.dataset("d");
    EXPECT_EQ(text_at(dataset, "url"), "file://" + root);
    EXPECT_EQ(text_at(dataset, "format"), "raw");
    EXPECT_EQ(text_at(dataset, "block"), "sample");
    EXPECT_EQ(text_at(dataset, "owner"), "12345");
    EXPECT_EQ(text_at(dataset, "mode"), "0604");
    EXPECT_EQ(dataset.at("dataset_id").as_string().size(), 16u);
    EXPECT_EQ(number_at(dataset, "version"), 1u);
    EXPECT_EQ(number_at(dataset, "objects"), files.size());
    EXPECT_EQ(number_at(dataset, "samples"), files.size());
    EXPECT_EQ(number_at(dataset, "classes"), 2u);
    EXPECT_EQ(number_at(dataset, "total_bytes"), total_bytes);
    EXPECT_EQ(number_at(dataset.at("quota"), "memory_bytes"), 0u);
    EXPECT_EQ(number_at(dataset.at("used"), "payload_bytes"), 0u);
    EXPECT_EQ(dataset.at("cached_ratio").to_number<double>(), 0);
    EXPECT_EQ(text_at(dataset, "disk_full"), "false");
    EXPECT_EQ(text_at(dataset, "offline"), "null");
    EXPECT_EQ(daemon.get("/v1/datasets").body.at("datasets").as_array().size(), 1u);

    EXPECT_EQ(daemon.call("DELETE", "/v1/datasets/d").status, 200u);
    EXPECT_EQ(daemon.get("/v1/datasets/d").status, 404u);
    EXPECT_TRUE(daemon.get("/v1/datasets").body.at("datasets").as_array().empty());
    EXPECT_FALSE(std::filesystem::exists(daemon.state / "state/datasets/d"));
    EXPECT_EQ(daemon.call("DELETE", "/v1/datasets/d").status, 404u);
    daemon.add("d", root);
}

TEST_F(ApiTest, InvalidBodiesGet400NamingTheKey) {
    const std::string root = make_files();
    const std::pair<const char*, const char*> bodies[] = {
        {"", "name"},
        {"{", "JSON"},
        {"[]", "object"},
        {R"({"name": "d"})", "url"},
        {R"({"name": 3, "url": "file:///x"})", "name"},
        {R"({"name": "a/b", "url": "file:///x"})", "name"},
        {R"({"name": "d", "url": "ftp://x"})", "url"},
        {R"({"name": "d", "url": "file:///x", "format": "zip"})", "format"},
        {R"({"name": "d", "url": "file:///x", "block": "8 bananas"})", "block"},
        {R"({"name": "d", "url": "file:///x", "tokens_per_sample": 0})", "tokens_per_sample"},
        {R"({"name": "d", "url": "file:///x", "tokens_per_sample": "8"})", "tokens_per_sample"},
        {R"({"name": "d", "url": "file:///x", "mode": "999"})", "mode"},
        {R"({"name": "d", "url": "file:///x", "mode": 640})", "mode"},
        {R"({"name": "d", "url": "file:///x", "owner": "nobody-of-that-name"})", "owner"},
        {R"({"name": "d", "url": "file:///x", "group": "nobody-of-that-name"})", "group"},
        {R"({"name": "d", "url": "file:///x", "quota": {"memory_bytes": 1}})", "disk_bytes"},
        {R"({"name": "d", "url": "file:///x", "quota": {"memory_bytes": 1, "disk_bytes": -1}})", "disk_bytes"},
        {R"({"name": "d", "url": "file:///x", "colour": "red"})", "colour"},
    };
    for (const auto& [body, named] : bodies) {
        const auto answer = daemon.call("POST", "/v1/datasets", body);
        EXPECT_EQ(answer.status, 400u) << body;
        EXPECT_THAT(answer.error_message(), HasSubstr(named)) << body;
    }
    daemon.add("d", root);
    EXPECT_THAT(daemon.put("/v1/datasets/d/quota", {{"memory_bytes", 1}}).error_message(), HasSubstr("disk_bytes"));
    EXPECT_EQ(daemon.put("/v1/datasets/d/quota", {{"memory_bytes", "1 GB"}, {"disk_bytes", 0}}).status, 400u);
    EXPECT_THAT(daemon.put("/v1/jobs/j/limit", {{"rate", 1}}).error_message(), HasSubstr("rate_bytes_per_second"));
    EXPECT_EQ(daemon.put("/v1/jobs/(scan)/limit", {{"rate_bytes_per_second", 1}}).status, 400u);
    EXPECT_THAT(daemon.post("/v1/datasets/d/verify", {{"deep", true}}).error_message(), HasSubstr("deep"));
}

TEST_F(ApiTest, UnknownPathsGet404AndWrongMethodsGet405) {
    for (const char* path : {"/v2/status", "/v1/nothing", "/v1/datasets/a/b", "/v1/datasets/a/quota/x", "/v1/jobs/a",
                             "/v1/tasks", "/v1/status/x"}) {
        EXPECT_EQ(daemon.get(path).status, 404u) << path;
    }
    EXPECT_EQ(daemon.call("PUT", "/v1/datasets").status, 405u);
    EXPECT_EQ(daemon.call("POST", "/v1/status").status, 405u);
    EXPECT_EQ(daemon.call("POST", "/v1/jobs/a/limit").status, 405u);
    EXPECT_EQ(daemon.get("/v1/datasets/a/index").status, 405u);
    for (const char* target : {"/v1/datasets/none", "/v1/datasets/none/quota", "/v1/tasks/77", "/v1/tasks/x"}) {
        EXPECT_EQ(daemon.get(target).status, 404u) << target;
    }
    EXPECT_EQ(daemon.post("/v1/datasets/none/index").status, 404u);
    EXPECT_EQ(daemon.post("/v1/datasets/none/warm").status, 404u);
    EXPECT_EQ(daemon.put("/v1/datasets/none/quota", {{"memory_bytes", 1}, {"disk_bytes", 1}}).status, 404u);
    EXPECT_THAT(daemon.get("/v1/datasets/none").error_message(), HasSubstr("none"));
}

TEST_F(ApiTest, UnknownQueryKeysGet400NamingTheKey) {
    const auto answer = daemon.get("/v1/status?colour=red");
    EXPECT_EQ(answer.status, 400u);
    EXPECT_THAT(answer.error_message(), HasSubstr("colour"));
}

TEST_F(ApiTest, AddingATakenNameGets409) {
    const std::string root = make_files();
    daemon.add("d", root);
    const auto again = daemon.post("/v1/datasets", {{"name", "d"}, {"url", "file://" + root}});
    EXPECT_EQ(again.status, 409u);
    EXPECT_THAT(again.error_message(), HasSubstr("\"d\""));
}

TEST_F(ApiTest, DryRunReportsSurveyAndAddsNothing) {
    const std::string root = make_files();
    const auto task =
        daemon.finished(daemon.post("/v1/datasets", {{"name", "d"}, {"url", "file://" + root}, {"dry_run", true}}));
    const json::value& found = task.at("result");
    EXPECT_EQ(text_at(found, "format"), "raw");
    EXPECT_EQ(number_at(found, "objects"), files.size());
    EXPECT_EQ(number_at(found, "bytes"), total_bytes);
    EXPECT_EQ(number_at(found, "top_directories"), 2u);
    EXPECT_EQ(daemon.get("/v1/datasets/d").status, 404u);
    EXPECT_FALSE(std::filesystem::exists(daemon.state / "state/datasets/d"));
}

TEST_F(ApiTest, FailedIndexingLeavesNoDataset) {
    std::filesystem::create_directory(daemon.state / "empty");
    for (const char* root : {"missing", "empty"}) {
        const auto task =
            daemon.finished(daemon.post("/v1/datasets", {{"name", "d"}, {"url", "file://" + (daemon.state / root)}}));
        EXPECT_EQ(text_at(task, "state"), "failed");
        EXPECT_THAT(text_at(task.at("error"), "message"), HasSubstr(root));
        EXPECT_EQ(daemon.get("/v1/datasets/d").status, 404u);
        EXPECT_FALSE(std::filesystem::exists(daemon.state / "state/datasets/d"));
    }
    daemon.add("d", make_files());
}

TEST_F(ApiTest, UnwritableRecordFailsTheAddition) {
    const std::string root = make_files();
    // The record is written by a rename, which fails over a directory that is not empty.
    const std::string in_the_way = daemon.config().state_directory + "/datasets/d/dataset.json";
    std::filesystem::create_directories(in_the_way + "/x");
    const auto task = daemon.finished(daemon.post("/v1/datasets", {{"name", "d"}, {"url", "file://" + root}}));
    EXPECT_EQ(text_at(task, "state"), "failed") << json::serialize(task);
    EXPECT_EQ(daemon.get("/v1/datasets/d").status, 404u);
    std::filesystem::remove_all(in_the_way);
    daemon.add("d", root);
    daemon.stop();
    daemon.start();
    EXPECT_EQ(daemon.get("/v1/datasets/d").status, 200u);
}

TEST_F(ApiTest, QuotasBeyondNodeCapacityAreRefused) {
    const std::string root = make_files();
    daemon.add("a", root, 40 * kMiB, 100 * kMiB);
    daemon.add("b", root);
    const auto too_much = daemon.put("/v1/datasets/b/quota", {{"memory_bytes", 25 * kMiB}, {"disk_bytes", 0}});
    EXPECT_EQ(too_much.status, http_status_of(ErrorCode::no_space));
    EXPECT_THAT(too_much.error_message(), HasSubstr(std::to_string(65 * kMiB)));
    EXPECT_THAT(too_much.error_message(), HasSubstr(std::to_string(64 * kMiB)));
    EXPECT_THAT(
        daemon.put("/v1/datasets/b/quota", {{"memory_bytes", 0}, {"disk_bytes", ~std::uint64_t{0}}}).error_message(),
        HasSubstr("quotas"));
    EXPECT_EQ(number_at(daemon.get("/v1/datasets/b/quota").body, "memory_bytes"), 0u)
        << "a refused quota changes nothing";
    EXPECT_EQ(daemon.put("/v1/datasets/b/quota", {{"memory_bytes", 24 * kMiB}, {"disk_bytes", 156 * kMiB}}).status,
              200u);
    EXPECT_EQ(number_at(daemon.get("/v1/datasets/b/quota").body, "disk_bytes"), 156 * kMiB);
    const auto third =
        daemon.post("/v1/datasets",
                    {{"name", "c"}, {"url", "file://" + root}, {"quota", {{"memory_bytes", 1}, {"disk_bytes", 0}}}});
    EXPECT_EQ(third.status, http_status_of(ErrorCode::no_space));
}

TEST_F(ApiTest, QuotasAndLimitsSurviveRestart) {
    daemon.add("d", make_files(), 1 * kMiB, 2 * kMiB);
    ASSERT_EQ(daemon.put("/v1/datasets/d/quota", {{"memory_bytes", 3 * kMiB}, {"disk_bytes", 4 * kMiB}}).status, 200u);
    ASSERT_EQ(daemon.put("/v1/jobs/new%2Fjob/limit", {{"rate_bytes_per_second", 1.5e6}, {"burst_bytes", 4096}}).status,
              200u);
    const auto id = text_at(daemon.dataset("d"), "dataset_id");
    daemon.stop();
    daemon.start();
    const auto dataset = daemon.dataset("d");
    EXPECT_EQ(text_at(dataset, "dataset_id"), id);
    EXPECT_EQ(number_at(dataset.at("quota"), "memory_bytes"), 3 * kMiB);
    EXPECT_EQ(number_at(dataset.at("quota"), "disk_bytes"), 4 * kMiB);
    const auto jobs = daemon.get("/v1/jobs").body;
    const auto& job = jobs.at("jobs").at(0);
    EXPECT_EQ(text_at(job, "job"), "new/job");
    EXPECT_EQ(job.at("remote_rate").to_number<double>(), 1.5e6);
    EXPECT_EQ(number_at(job, "remote_burst_bytes"), 4096u);
    const auto removed = daemon.call("DELETE", "/v1/jobs/new%2Fjob/limit");
    EXPECT_EQ(removed.status, 200u);
    EXPECT_EQ(text_at(removed.body, "job"), "new/job");
    EXPECT_EQ(number_at(removed.body, "rate_bytes_per_second"), 0u) << "the config limits no job";
    EXPECT_TRUE(daemon.get("/v1/jobs").body.at("jobs").as_array().empty());
    daemon.stop();
    daemon.start();
    EXPECT_TRUE(daemon.get("/v1/jobs").body.at("jobs").as_array().empty());
}

TEST_F(ApiTest, WarmCachesAllBlocksAndVerifyFindsNoneBad) {
    daemon.add("d", make_files(), 16 * kMiB);
    const auto warm = daemon.finished(daemon.post("/v1/datasets/d/warm"));
    ASSERT_EQ(text_at(warm, "state"), "done") << json::serialize(warm);
    EXPECT_EQ(text_at(warm, "unit"), "blocks");
    const auto dataset = daemon.dataset("d");
    EXPECT_EQ(number_at(dataset.at("used"), "payload_bytes"), total_bytes);
    EXPECT_EQ(number_at(dataset.at("used"), "blocks"), files.size());
    EXPECT_EQ(dataset.at("cached_ratio").to_number<double>(), 1);
    for (const bool remote : {false, true}) {
        const auto verify = daemon.finished(daemon.post("/v1/datasets/d/verify", {{"remote", remote}}));
        ASSERT_EQ(text_at(verify, "state"), "done") << json::serialize(verify);
        EXPECT_EQ(number_at(verify.at("result"), "blocks"), files.size());
        EXPECT_EQ(number_at(verify.at("result"), "blocks_bad"), 0u);
    }
}

TEST_F(ApiTest, DatasetRunsOneTaskUntilItIsCancelled) {
    daemon.config().default_job = {.remote_bytes_per_second = 1, .remote_burst_bytes = 1};
    daemon.stop();
    daemon.start();
    daemon.add("d", make_files(), 16 * kMiB);
    const auto warm = daemon.post("/v1/datasets/d/warm");
    const auto busy = daemon.post("/v1/datasets/d/index");
    EXPECT_EQ(busy.status, 409u);
    EXPECT_THAT(busy.error_message(), HasSubstr("warm"));
    EXPECT_EQ(daemon.call("DELETE", "/v1/datasets/d").status, 409u);
    daemon.call("DELETE", "/v1/tasks/" + std::to_string(number_at(warm.body, "task")));
    EXPECT_EQ(text_at(daemon.finished(warm), "state"), "cancelled");
    EXPECT_EQ(daemon.call("DELETE", "/v1/datasets/d").status, 200u);
}

TEST_F(ApiTest, ReindexingAddsAVersion) {
    const std::string root = make_files();
    daemon.add("d", root);
    write_file(root + "/class_000/zzz.bin", "new");
    const auto task = daemon.finished(daemon.post("/v1/datasets/d/index"));
    ASSERT_EQ(text_at(task, "state"), "done") << json::serialize(task);
    EXPECT_EQ(number_at(task.at("result"), "objects_carried_over"), files.size());
    const auto dataset = daemon.dataset("d");
    EXPECT_EQ(number_at(dataset, "version"), 2u);
    EXPECT_EQ(number_at(dataset, "samples"), files.size() + 1);
    EXPECT_EQ(text_at(dataset, "versions"), "[1,2]");
    daemon.stop();
    daemon.start();
    EXPECT_EQ(number_at(daemon.dataset("d"), "version"), 2u);
}

TEST_F(ApiTest, ReindexingWithoutAChangeKeepsTheVersion) {
    daemon.add("d", make_files());
    const auto task = daemon.finished(daemon.post("/v1/datasets/d/index"));
    ASSERT_EQ(text_at(task, "state"), "done") << json::serialize(task);
    EXPECT_EQ(number_at(task.at("result"), "version"), 1u);
    EXPECT_THAT(json::serialize(task.at("result").at("notes")), HasSubstr("nothing has changed since version 1"));
    EXPECT_EQ(text_at(daemon.dataset("d"), "versions"), "[1]");
    EXPECT_FALSE(std::filesystem::exists(daemon.state / "state/datasets/d/manifest-2"));
    daemon.stop();
    daemon.start();
    EXPECT_EQ(text_at(daemon.dataset("d"), "versions"), "[1]");
}

TEST_F(ApiTest, OneUserHasAtMost64Connections) {
    std::vector<FileDescriptor> clients;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    daemon.admin_socket().copy(address.sun_path, sizeof address.sun_path - 1);
    for (int i = 0; i < 65; ++i) {
        clients.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        ASSERT_EQ(::connect(clients.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    }
    const auto is_answered = [](const FileDescriptor& client) {
        const std::string_view request = "GET /healthz HTTP/1.1\r\nHost: larder\r\n\r\n";
        ::send(client.get(), request.data(), request.size(), MSG_NOSIGNAL);
        char byte = 0;
        return ::recv(client.get(), &byte, 1, 0) == 1;
    };
    EXPECT_TRUE(is_answered(clients[63]));
    EXPECT_FALSE(is_answered(clients[64]));
}

TEST_F(ApiTest, MetricsListenerServesOnlyMetricsAndHealth) {
    daemon.config().metrics_listen = "127.0.0.1:0";
    daemon.stop();
    daemon.start();
    daemon.add("d", make_files(), 16 * kMiB);
    daemon.finished(daemon.post("/v1/datasets/d/warm"));
    const std::string text = daemon.get("/metrics").text;
    EXPECT_THAT(text, HasSubstr("larder_dataset_cached_blocks{dataset=\"d\"} " + std::to_string(files.size()) + "\n"));
    EXPECT_THAT(text, HasSubstr("larder_node_capacity_bytes{tier=\"memory\"} 67108864\n"));

    const std::string address = "127.0.0.1:" + std::to_string((*daemon).metrics_port());
    EXPECT_EQ(http_request(address, "GET", "/metrics").value().status, 200u);
    EXPECT_EQ(http_request(address, "GET", "/healthz").value().status, 200u);
    EXPECT_EQ(http_request(address, "GET", "/v1/status").value().status, 403u);
    EXPECT_EQ(http_request(address, "DELETE", "/v1/datasets/d").value().status, 403u);
}

TEST_F(ApiTest, PageOfForeignHostReadsNothing) {
    daemon.config().metrics_listen = "127.0.0.1:0";
    daemon.config().page_anyone_reads = true;
    daemon.stop();
    daemon.start();
    const std::string address = "127.0.0.1:" + std::to_string((*daemon).metrics_port());
    using Headers = std::vector<std::pair<std::string, std::string>>;
    const auto answer = [&](const char* target, const Headers& headers) {
        return http_request(address, "GET", target, "", {.headers = headers}).value();
    };
    for (const char* header : {"Accept-Language", "Sec-Fetch-Site", "Origin"}) {
        EXPECT_EQ(answer("/metrics", {{header, "en"}}).status, 200u) << header;
        EXPECT_EQ(answer("/metrics", {{header, "en"}, {"Host", "evil.example"}}).status, 403u) << header;
    }
    EXPECT_EQ(answer("/metrics", {{"Host", "node-1.example"}}).status, 200u) << "Prometheus may use any name";
    EXPECT_EQ(answer("/v1/status", {}).status, 200u);
    const HttpResponse refused = answer("/v1/status", {{"Host", "evil.example"}});
    EXPECT_EQ(refused.status, 403u);
    EXPECT_THAT(refused.body,
                HasSubstr("without a token, ask by an IP address, as localhost or by this machine's name"));
}

TEST_F(ApiTest, PageTokenHasAtLeast16Letters) {
    const std::string file = daemon.state / "page.token";
    daemon.config().page_token_file = file;
    daemon.stop();
    for (const auto& [token, is_good] : {std::pair{"x", false},
                                         {"0123456789abcde", false},
                                         {"0123456789abcdef", true},
                                         {"0123456789 abcdef", false}}) {
        std::ofstream(file) << token << "\n";
        ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
        const auto started = cache::Daemon::start(daemon.config());
        ASSERT_EQ(started.has_value(), is_good) << token;
        if (is_good) continue;
        EXPECT_THAT(started.error().message, HasSubstr("must have 16 to 512 letters"));
    }
}

}  // namespace
}  // namespace larder::test
