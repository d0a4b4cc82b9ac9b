// The `larder` program against a fake daemon: what it requests, what it prints and its exit codes.

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "base/server/http.h"
#include "tests/support/program.h"
#include "tests/support/temp_directory.h"

namespace larder {
namespace {

using test::ProgramResult;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kDataset =
    R"({"name":"images","url":"file:///data","format":"raw","block":"sample","dataset_id":"00000000000000ff",)"
    R"("version":2,"objects":1000,"blocks":1000,"samples":1000,"total_bytes":1048576,"classes":10,"owner":"ann",)"
    R"("group":"ml","mode":"0640","quota":{"memory_bytes":524288,"disk_bytes":0},"used":{"memory_bytes":262144,)"
    R"("disk_bytes":0,"payload_bytes":261120,"blocks":250,"segments":1},"cached_ratio":0.25,"disk_full":false,)"
    R"("counters":{"memory_hits":30,"disk_hits":10,"misses":60,"bytes_memory":30720,"bytes_disk":10240,)"
    R"("bytes_remote":61440,"crc_failures":1,"remote_errors":0,"admissions_refused":5},"versions":[1,2]})";
constexpr const char* kJob =
    R"({"job":"resnet","user":"ada","dataset":"images","sessions":2,"epoch":3,"remote_rate":2e8,)"
    R"("remote_burst_bytes":16777216,)"
    R"("counters":{"memory_hits":3,"disk_hits":1,"misses":4,)"
    R"("bytes_memory":3072,"bytes_disk":1024,"bytes_remote":4096},)"
    R"("unread_bytes":524288,"effective_cache_bytes":131072,"stall_s":1.5,"samples":8,"bytes":8192,)"
    R"("rate_bytes_per_second":125000000})";

// Answers "METHOD /path" from a table and records the requests.
class FakeAdminApi {
public:
    explicit FakeAdminApi(const std::string& socket) {
        const auto listening = server_->listen_unix(socket, 0600);
        EXPECT_TRUE(listening);
        thread_ = std::jthread([this] { context_.run(); });
    }
    ~FakeAdminApi() {
        boost::asio::post(context_, [this] {
            server_.reset();
            guard_.reset();
        });
        thread_.join();
    }
    void answer(const std::string& what, HttpResponse response) {
        const std::lock_guard lock(mutex_);
        answers_[what].push_back(std::move(response));
    }
    void answer(const std::string& what, const std::string& body) { answer(what, {200, "application/json", body, {}}); }
    std::vector<std::string> requests() {
        const std::lock_guard lock(mutex_);
        return requests_;
    }
    // Returns the queries that were not empty.
    std::vector<std::string> queries() {
        const std::lock_guard lock(mutex_);
        return queries_;
    }

private:
    void handle(const HttpRequest& request, const HttpRespond& respond) {
        std::string what = request.method + " ";
        for (const auto& segment : request.path) what += "/" + segment;
        const std::lock_guard lock(mutex_);
        requests_.push_back(what + (request.body.empty() ? "" : " " + request.body));
        std::string query;
        for (const auto& [key, value] : request.query) query += (query.empty() ? "" : "&") + key + "=" + value;
        if (!query.empty()) queries_.push_back(std::move(query));
        auto& answers = answers_[what];
        if (answers.empty()) return respond(http_error(404, "not_found", "nothing at " + what));
        respond(answers.front());
        // The last answer is repeated.
        if (answers.size() > 1) answers.erase(answers.begin());
    }

    boost::asio::io_context context_;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_ = make_work_guard(context_);
    std::mutex mutex_;
    std::map<std::string, std::vector<HttpResponse>> answers_;
    std::vector<std::string> requests_;
    std::vector<std::string> queries_;
    std::unique_ptr<HttpServer> server_ = std::make_unique<HttpServer>(
        context_, [this](const HttpRequest& request, HttpRespond respond) { handle(request, respond); });
    std::jthread thread_;
};

class LarderTest : public ::testing::Test {
protected:
    ProgramResult larder(std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), LARDER_PROGRAM);
        return test::run_program(arguments, {{"LARDER_ADMIN_SOCKET", socket}});
    }

    test::TempDirectory directory;
    std::string socket = directory / "admin.sock";
};

class LarderWithDaemonTest : public LarderTest {
protected:
    FakeAdminApi daemon{socket};
};

TEST_F(LarderTest, HelpNamesTheCommandsAndTheExitCodes) {
    const auto help = larder({"--help"});
    EXPECT_EQ(help.exit_code, 0);
    for (const char* word :
         {"up", "dataset", "quota", "jobs", "top", "status", "version", "--json", "Exit codes: 0 done"}) {
        EXPECT_THAT(help.output, HasSubstr(word));
    }
    EXPECT_EQ(larder({"dataset", "add", "--help"}).exit_code, 0);
    const auto version = larder({"--version"});
    EXPECT_EQ(version.exit_code, 0);
    EXPECT_EQ(version.output, larder({"version"}).output);
}

TEST_F(LarderTest, WrongUsageExitsWith2AndNamesCause) {
    const struct {
        std::vector<std::string> arguments;
        const char* says;
    } cases[] = {
        {{}, "larder: which command? There are up, "},
        {{"nonsense"}, "larder: unknown command \"nonsense\"; there are up, "},
        {{"dataset", "nonsense"}, "larder dataset: unknown command \"nonsense\"; there are add, ls, "},
        {{"dataset"}, "larder dataset: which command? There are add, ls, "},
        {{"dataset", "add"}, "larder dataset add: NAME is required; see `larder dataset add --help`"},
        {{"dataset", "add", "images"}, "URL"},
        {{"dataset", "add", "images", "file:///x", "--format", "zip"}, "zip"},
        {{"dataset", "add", "images", "file:///x", "--block", "8 MX"}, "8 MX"},
        {{"dataset", "add", "images", "file:///x", "--quota-memory", "10"}, "\"10\" is not a size"},
        {{"dataset", "ls", "extra"}, "extra"},
        {{"dataset", "pack", "only-one"}, "DESTINATION"},
        {{"dataset", "pack", "a", "b", "--shard-size", "big"}, "\"big\" is not a size"},
        {{"dataset", "pack", "a", "b", "--format", "mds"}, "webdataset"},
        {{"quota", "set", "images"}, "larder quota set: at least one of --memory, --disk, --auto is required"},
        {{"quota", "set", "images", "--memory", "lots"}, "\"lots\" is not a size"},
        {{"job", "limit", "resnet", "--burst", "1MiB"}, "larder job limit: --rate or --none is required"},
        {{"job", "limit", "resnet", "--ahead"}, "--rate or --none is required"},
        {{"job", "limit", "resnet", "--rate", "200"}, "\"200\" is not a rate"},
        {{"top", "--interval", "0"}, "larder top: --interval: \"0\" is not a number from 0.1 to 3600;"},
        {{"top", "--count", "-1"}, "larder top: --count: \"-1\" is not a number above 0"},
        {{"job", "limit", "resnet", "--rate"}, "larder job limit: --rate: a value is missing"},
        {{"dataset", "pack", "a", "b", "--format", "webdatset"},
         "--format: \"webdatset\" is not one of webdataset, larder; did you mean webdataset?"},
        {{"whatif"}, "larder: name a change"},
        {{"up", "--memory", "lots"}, "--memory lots: expected a size"},
        {{"up", "--memroy", "1GiB"}, "did you mean \"memory\"?"},
        {{"up", "--log.level"}, "--log.level"},
        {{"up", "stray"}, "stray"},
        {{"status", "--frobnicate"}, "larder status: unknown option --frobnicate; see `larder status --help`"},
        {{"job", "submit", "--gpus", "x", "--", "true"}, "larder job submit: --gpus: \"x\" is not a number"},
        {{"job", "submit", "--gpus", "0", "--", "true"}, "larder job submit: --gpus: \"0\" is not a number above 0"},
        {{"job", "submit", "--grace", "-1", "--", "true"},
         "larder job submit: --grace: \"-1\" is not a number from 0 to 86400"},
        {{"job", "submit", "--packed-rate", "1.5", "--", "true"},
         "larder job submit: --packed-rate: \"1.5\" is not a number from 0 to 1"},
        {{"job", "submit"}, "larder job submit: needs a COMMAND, or else --file"},
        {{"job", "submit", "--file", "jobs.json", "true"}, "larder job submit: needs a COMMAND, or else --file"},
        {{"dataset", "add", "images", "s3://bucket/a", "--endpoint", "localhost:9"},
         "--endpoint: the endpoint \"localhost:9\" is not http://host:port or https://host:port"},
        {{"stat"}, "did you mean `larder status`?"},
        {{"datasets"}, "did you mean `larder dataset`?"},
        {{"list"}, "did you mean `larder dataset ls`, `larder quota ls`, `larder job ls` or `larder node ls`?"},
        {{"remove", "images"}, "did you mean `larder dataset rm`, `larder job rm` or `larder node rm`?"},
        {{"warm", "images"}, "did you mean `larder dataset warm`?"},
        {{"dataset", "delete", "images"}, "did you mean `larder dataset rm`?"},
        {{"dataset", "wram", "images"}, "did you mean `larder dataset warm`?"},
        {{"job", "stop", "x"}, "did you mean `larder job cancel`?"},
        {{"dataset", "status"}, "did you mean `larder status`?"},
        {{"quota", "rm"}, "larder quota: unknown command \"rm\"; did you mean `larder dataset rm`"},
        {{"dataset", "add", "images", "/x", "--fromat", "raw"},
         "larder dataset add: unknown option --fromat; did you "
         "mean --format?"},
    };
    for (const auto& [arguments, says] : cases) {
        const auto result = larder(arguments);
        EXPECT_EQ(result.exit_code, 2) << ::testing::PrintToString(arguments) << result.output << result.errors;
        EXPECT_THAT(result.errors, HasSubstr(says));
    }
}

TEST_F(LarderTest, UsageErrorsAreJsonOnStandardOutputIfAskedFor) {
    const auto wrong = larder({"top", "--interval", "0", "--json"});
    EXPECT_EQ(wrong.exit_code, 2);
    EXPECT_THAT(wrong.output,
                StartsWith("{\"error\":{\"code\":\"invalid_argument\",\"message\":\"larder top: --interval"));
    EXPECT_THAT(larder({"job", "submit", "--gpus", "x", "--", "true", "--json"}).output, IsEmpty());
}

TEST_F(LarderWithDaemonTest, ListAndRemoveAreAliasesOfLsAndRm) {
    daemon.answer("GET /v1/datasets", R"({"datasets":[]})");
    daemon.answer("DELETE /v1/datasets/images", "{}");
    EXPECT_EQ(larder({"dataset", "list"}).output, larder({"dataset", "ls"}).output);
    EXPECT_THAT(larder({"dataset", "remove", "images"}).output, StartsWith("removed images"));
    for (const char* group : {"dataset", "job", "node"}) {
        for (const char* name : {"list", "remove"}) EXPECT_EQ(larder({group, name, "--help"}).exit_code, 0);
    }
}

TEST_F(LarderTest, NoDaemonExitsWith3AndSaysWhatToDo) {
    for (const std::vector<std::string>& arguments : {std::vector<std::string>{"status"},
                                                      {"dataset", "ls"},
                                                      {"jobs"},
                                                      {"top", "--count", "1"},
                                                      {"quota", "get", "x"}}) {
        const auto result = larder(arguments);
        EXPECT_EQ(result.exit_code, 3) << ::testing::PrintToString(arguments);
        EXPECT_THAT(result.errors, HasSubstr(socket));
        EXPECT_THAT(result.errors, HasSubstr("larder up"));
        EXPECT_THAT(result.output, IsEmpty());
    }
    const auto with_json = larder({"status", "--json"});
    EXPECT_EQ(with_json.exit_code, 3);
    EXPECT_THAT(with_json.output, StartsWith("{\"error\":{\"code\":\"unavailable\""));
}

TEST_F(LarderTest, VersionNeedsNoDaemon) {
    EXPECT_THAT(larder({"version"}).output, MatchesRegex("larder [0-9]+\\.[0-9]+\\.[0-9]+\n"));
    EXPECT_THAT(larder({"--json", "version"}).output, MatchesRegex("\\{\"version\":\"[0-9.]+\"\\}\n"));
}

TEST_F(LarderTest, PackWritesShardsWithoutADaemon) {
    std::filesystem::create_directories(directory / "source/cats");
    std::ofstream(directory / "source/cats/a.txt") << "meow";
    std::ofstream(directory / "source/cats/b.txt") << "purr";
    const auto packed = larder({"dataset", "pack", directory / "source", directory / "shards", "--json"});
    EXPECT_EQ(packed.exit_code, 0) << packed.errors;
    EXPECT_THAT(packed.output, HasSubstr("\"samples\":2"));
    EXPECT_THAT(packed.errors, IsEmpty()) << "no progress bar without a terminal";
    EXPECT_TRUE(std::filesystem::exists(directory / "shards/shard-000000.tar"));
    const auto blocks = larder({"dataset", "pack", directory / "shards", directory / "blocks", "--format", "larder",
                                "--compression", "zstd:5", "--block", "1MiB", "--json"});
    EXPECT_EQ(blocks.exit_code, 0) << blocks.errors;
    EXPECT_THAT(blocks.output, HasSubstr("\"source_format\":\"webdataset\""));
    EXPECT_TRUE(std::filesystem::exists(directory / "blocks/shard-000000.larder"));
    const auto wrong_option = [&](const std::string& option, const std::string& value, const std::string& format) {
        return larder(
            {"dataset", "pack", directory / "source", directory / "wrong", "--format", format, option, value});
    };
    EXPECT_THAT(wrong_option("--compression", "zstd:0", "larder").errors, HasSubstr("a level of 1 to 19"));
    EXPECT_THAT(wrong_option("--compression", "lz4", "larder").errors, HasSubstr("\"lz4\" is not none"));
    EXPECT_THAT(wrong_option("--compression", "zstd", "webdataset").errors, HasSubstr("are for --format larder"));
    EXPECT_THAT(wrong_option("--block", "many", "larder").errors, HasSubstr("\"many\""));
    EXPECT_FALSE(std::filesystem::exists(directory / "wrong"));
    const auto missing = larder({"dataset", "pack", directory / "none", directory / "other"});
    EXPECT_EQ(missing.exit_code, 4) << missing.errors;
    EXPECT_THAT(missing.errors, HasSubstr("none"));
}

TEST_F(LarderWithDaemonTest, ShowsStatus) {
    daemon.answer("GET /v1/status", R"({"version":"9.8.7","pid":42,"uptime_s":200,"io":"ring","data_plane_threads":1,)"
                                    R"("memory_bytes":1073741824,"disk_bytes":0,"datasets":2,"sessions":3})");
    const auto result = larder({"status"});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output,
                MatchesRegex("version +9\\.8\\.7\npid +42\nup for +3m 20s\nio +ring\n(.|\n)*1\\.00 GiB(.|\n)*"));
    EXPECT_THAT(larder({"status", "--json"}).output, HasSubstr("\"pid\":42"));
}

TEST_F(LarderWithDaemonTest, StatusExplainsAnIndexThatIsNotSaved) {
    daemon.answer("GET /v1/status", R"({"pid":42,"index_problem":"commit to the index: No space left on device"})");
    EXPECT_THAT(larder({"status"}).output,
                HasSubstr("\nproblem: the index of cached blocks was not saved: commit to the index: No space left on "
                          "device; after a restart some blocks are fetched again\n"));
}

TEST_F(LarderWithDaemonTest, AddsDatasetAndFollowsItsTask) {
    daemon.answer("POST /v1/datasets", {202, "application/json", R"({"task":7})", {}});
    daemon.answer("GET /v1/tasks/7",
                  R"({"id":7,"kind":"add","dataset":"images","state":"running","done":1,"total":0})");
    daemon.answer(
        "GET /v1/tasks/7",
        R"({"id":7,"kind":"add","dataset":"images","state":"done","done":1000,"total":1000,"unit":"objects",)"
        R"("bytes_done":0,"seconds":2.5,"result":{"samples":1000,"total_bytes":1048576,"notes":["3 empty files"]}})");
    const auto result = larder({"dataset", "add", "images", directory.path().string() + "/./x", "--format", "raw",
                                "--block", "8MiB", "--mode", "0644", "--quota-memory", "1MiB"});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_EQ(result.output, "added images in 2.5 s, samples 1,000, total bytes 1.00 MiB\nnote: 3 empty files\n");
    EXPECT_THAT(daemon.requests(),
                ElementsAre("POST /v1/datasets {\"name\":\"images\",\"url\":\"file://" + (directory / "x") +
                                "\",\"format\":\"raw\",\"block\":\"8MiB\",\"mode\":\"0644\",\"quota\":"
                                "{\"memory_bytes\":1048576,\"disk_bytes\":0}}",
                            "GET /v1/tasks/7", "GET /v1/tasks/7"));
}

TEST_F(LarderWithDaemonTest, DryRunShowsWhatAddingWouldFind) {
    daemon.answer("POST /v1/datasets", {202, "application/json", R"({"task":7})", {}});
    daemon.answer("GET /v1/tasks/7",
                  R"({"id":7,"kind":"survey","dataset":"images","state":"done","seconds":0.1,"result":{)"
                  R"("url":"file:///x","format":"raw","objects":4,"bytes":3072,"top_directories":0,"empty_objects":1,)"
                  R"("suffixes":[{"suffix":".tar","objects":3,"bytes":3000},{"suffix":"","objects":1,"bytes":72}],)"
                  R"("odd_objects":3,"odd":["README","notes"],"notes":["3 of 4 files are tars"]}})");
    const auto result = larder({"dataset", "add", "images", "file:///x", "--dry-run"});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_EQ(result.output,
              "url          file:///x\n"
              "format       raw, detected from the files\n"
              "files        4, 3.00 KiB\n"
              "kinds        3 .tar (2.93 KiB), 1 without a suffix (72 B)\n"
              "directories  0\n"
              "empty files  1\n"
              "odd files    README, notes and 1 more\n"
              "note: 3 of 4 files are tars\n"
              "nothing was added: run the same command without --dry-run to add the dataset\n");
    EXPECT_EQ(daemon.requests().front(), R"(POST /v1/datasets {"name":"images","url":"file:///x","dry_run":true})");
}

TEST_F(LarderWithDaemonTest, FailedTaskGivesItsErrorAndExitCode) {
    daemon.answer("POST /v1/datasets", {202, "application/json", R"({"task":8})", {}});
    daemon.answer("GET /v1/tasks/8",
                  R"({"id":8,"state":"failed","error":{"code":"not_found","message":"no directory /x"}})");
    const auto failed = larder({"dataset", "add", "images", "file:///x"});
    EXPECT_EQ(failed.exit_code, 4);
    EXPECT_EQ(failed.errors, "larder: no directory /x\n");
    daemon.answer("POST /v1/datasets/images/warm", {202, "application/json", R"({"task":9})", {}});
    daemon.answer("GET /v1/tasks/9", R"({"id":9,"kind":"warm","state":"cancelled"})");
    const auto cancelled = larder({"dataset", "warm", "images"});
    EXPECT_EQ(cancelled.exit_code, 1);
    EXPECT_EQ(cancelled.errors, "larder: warm was cancelled\n");
}

TEST_F(LarderWithDaemonTest, WarmShowsPromisedAndCachedBytesAndWhyRestIsMissing) {
    const std::string plan = R"("blocks":40,"bytes":4194304,"promised_blocks":30,"promised_bytes":3145728,)"
                             R"("quota":{"memory_bytes":4096,"disk_bytes":0})";
    const auto warm = [&](const std::string& id, const std::string& result) {
        daemon.answer("POST /v1/datasets/images" + id + "/warm",
                      {202, "application/json", R"({"task":)" + id + "}", {}});
        daemon.answer("GET /v1/tasks/" + id, R"({"id":9,"kind":"warm","state":"done","seconds":2,"plan":{)" + plan +
                                                 R"(},"result":{)" + plan + "," + result + "}}");
        return larder({"dataset", "warm", "images" + id});
    };
    const auto kept = warm("9", R"("kept":true,"cached_blocks":30,"cached_bytes":3145728,"fetched_bytes":3145728,)"
                                R"("not_cached":{"quota":10,"disk_full":0})");
    EXPECT_EQ(kept.exit_code, 0);
    EXPECT_EQ(
        kept.output,
        "images9 has 40 blocks, 4.00 MiB; to fetch: at least 30 blocks, 3.00 MiB, as its quota, 4.00 KiB of memory "
        "and 0 B of disk, has no room for more\n"
        "warmed images9 in 2.0 s: 30 of 40 blocks are cached, 3.00 MiB of 4.00 MiB (75.0 %); read 3.00 MiB, 1.57 MB/s\n"
        "not cached: 10 blocks: its quota, 4.00 KiB of memory and 0 B of disk, has no room for them: larder quota "
        "set images9 --memory SIZE --disk SIZE\n");
    const auto unassigned = warm("11", R"("kept":false,"cached_blocks":0,"quota_assigned":false,)"
                                       R"("not_cached":{"quota":40})");
    EXPECT_EQ(unassigned.exit_code, 1);
    EXPECT_THAT(unassigned.output, HasSubstr("not cached: 40 blocks: the allocator has not set the dataset's quota"));
    const auto broken = warm("10", R"("kept":false,"cached_blocks":3,"cached_bytes":300,"disk_problem":"no space",)"
                                   R"("not_cached":{"quota":10,"disk_full":26,"failed":1},"notes":["a.bin: gone"])");
    EXPECT_EQ(broken.exit_code, 1);
    EXPECT_THAT(broken.output, HasSubstr("not cached: 26 blocks: the cache disk is full: no space\n"));
    EXPECT_THAT(broken.output, HasSubstr("not cached: 1 block: the remote did not deliver them, see below\n"));
    EXPECT_THAT(broken.output, HasSubstr("note: a.bin: gone\n"));
}

TEST_F(LarderWithDaemonTest, WarmWithoutRoomSaysThatNothingIsFetched) {
    const auto warm = [&](const std::string& cached_blocks, const std::string& quota) {
        const std::string counts = R"("blocks":40,"bytes":4194304,"promised_blocks":0,"promised_bytes":0,)"
                                   R"("cached_bytes":1048576,"cached_blocks":)" +
                                   cached_blocks + R"(,"quota":{"memory_bytes":)" + quota + R"(,"disk_bytes":0})";
        daemon.answer("POST /v1/datasets/a" + quota + "/warm",
                      {202, "application/json", R"({"task":)" + quota + "}", {}});
        daemon.answer("GET /v1/tasks/" + quota, R"({"id":9,"kind":"warm","state":"done","seconds":2,"plan":{)" +
                                                    counts + R"(},"result":{"kept":true,)" + counts + "}}");
        return larder({"dataset", "warm", "a" + quota}).output;
    };
    EXPECT_THAT(warm("10", "4096"), StartsWith("a4096 has 40 blocks, 4.00 MiB; cached already: 10 blocks, 1.00 MiB; "
                                               "nothing to fetch: its quota, 4.00 KiB of memory and 0 B of disk, has "
                                               "no room for more\n"));
    EXPECT_THAT(warm("0", "0"), StartsWith("a0 has 40 blocks, 4.00 MiB; nothing to fetch: it has no quota\n"));
}

TEST_F(LarderWithDaemonTest, UpRefusesARemoteBandwidthOf0) {
    const auto up = larder({"up", "--state", directory / "state", "--remote-bandwidth", "0"});
    EXPECT_EQ(up.exit_code, 2);
    EXPECT_EQ(up.errors, "larder: --remote-bandwidth: give a rate above 0, or leave it out for no limit\n");
}

TEST_F(LarderWithDaemonTest, SizesOfOneLineHaveOneFamilyOfUnits) {
    daemon.answer("POST /v1/datasets/images/index", {202, "application/json", R"({"task":7})", {}});
    daemon.answer("GET /v1/tasks/7", R"({"id":7,"kind":"index","state":"done","seconds":1,"result":)"
                                     R"({"total_bytes":5704253,"bytes_carried_over":5700000}})");
    EXPECT_EQ(larder({"dataset", "index", "images"}).output,
              "indexed images in 1.0 s, total bytes 5.44 MiB, bytes carried over 5.44 MiB\n");
}

TEST_F(LarderWithDaemonTest, SilentRemoteHasItsOwnExitCode) {
    daemon.answer("POST /v1/datasets", {202, "application/json", R"({"task":8})", {}});
    daemon.answer("GET /v1/tasks/8",
                  R"({"id":8,"state":"failed","error":{"code":"unavailable","message":"http://x: refused"},)"
                  R"("waits_for":{"endpoint":"http://x","problem":"refused","seconds":1.5}})");
    const auto failed = larder({"dataset", "add", "images", "http://x/all.txt"});
    EXPECT_EQ(failed.exit_code, 6);
    EXPECT_EQ(failed.errors,
              "indexing images  0   waits for http://x, which has not answered for 1.5 s: refused\n"
              "larder: http://x: refused\n");
}

TEST_F(LarderWithDaemonTest, ExitCodesFollowTheAnswer) {
    EXPECT_EQ(larder({"dataset", "info", "none"}).exit_code, 4);
    daemon.answer("DELETE /v1/datasets/a b", http_error(403, "permission_denied", "only root or its owner may"));
    const auto refused = larder({"dataset", "rm", "a b"});
    EXPECT_EQ(refused.exit_code, 5);
    EXPECT_EQ(refused.errors, "larder: only root or its owner may\n");
    daemon.answer("POST /v1/datasets", http_error(409, "already_exists", "there is one"));
    EXPECT_EQ(larder({"dataset", "add", "x", "file:///x"}).exit_code, 5);
    daemon.answer("GET /v1/jobs", http_error(500, "internal", "broken"));
    EXPECT_EQ(larder({"jobs"}).exit_code, 1);
    daemon.answer("GET /v1/datasets", {200, "text/html", "<html>", {}});
    const auto garbage = larder({"dataset", "ls"});
    EXPECT_EQ(garbage.exit_code, 1);
    EXPECT_THAT(garbage.errors, HasSubstr("not JSON"));
}

TEST_F(LarderWithDaemonTest, ListsAndDescribesDatasets) {
    daemon.answer("GET /v1/datasets", std::string("{\"datasets\":[") + kDataset + "]}");
    daemon.answer("GET /v1/datasets/images", kDataset);
    EXPECT_EQ(
        larder({"dataset", "ls"}).output,
        "NAME    FORMAT  BLOCK   SAMPLES      SIZE  CACHED                   MEMORY       DISK    HITS  VERSION\n"
        "images  raw     sample    1,000  1.00 MiB  25.0 %  256.00 KiB / 512.00 KiB  0 B / 0 B  40.0 %        2\n");
    const auto info = larder({"dataset", "info", "images"}).output;
    for (const char* line :
         {"version       2 (kept: 1, 2)\n", "access        ann:ml 0640\n", "samples       1,000\n",
          "cached        25.0 %, 250 blocks, 255.00 KiB\n", "memory        256.00 KiB of 512.00 KiB\n",
          "hits          40.0 % (30 memory, 10 disk, 60 misses)\n",
          "faults        1 damaged block fetched again, 0 remote errors\n"}) {
        EXPECT_THAT(info, HasSubstr(line));
    }
    EXPECT_THAT(larder({"dataset", "info", "images", "--json"}).output,
                HasSubstr("\"dataset_id\":\"00000000000000ff\""));
}

TEST_F(LarderWithDaemonTest, SetsQuotas) {
    daemon.answer("GET /v1/datasets/images/quota", R"({"memory_bytes":1048576,"disk_bytes":2097152})");
    daemon.answer("PUT /v1/datasets/images/quota", R"({"memory_bytes":1048576,"disk_bytes":4194304})");
    EXPECT_EQ(larder({"quota", "get", "images"}).output, "memory  1.00 MiB\ndisk    2.00 MiB\n");
    EXPECT_EQ(larder({"quota", "set", "images", "--disk", "4 MiB"}).output, "memory  1.00 MiB\ndisk    4.00 MiB\n");
    EXPECT_EQ(daemon.requests().back(),
              "PUT /v1/datasets/images/quota {\"memory_bytes\":1048576,\"disk_bytes\":4194304}")
        << "a tier that is not named keeps its quota";
}

TEST_F(LarderWithDaemonTest, ShowsAndLimitsJobs) {
    daemon.answer("GET /v1/jobs", std::string("{\"jobs\":[") + kJob + "]}");
    daemon.answer("PUT /v1/jobs/resnet/limit", "{}");
    EXPECT_THAT(
        larder({"jobs"}).output,
        MatchesRegex("JOB .*STALL\nresnet  ada +images +2 +3 +125.00 MB/s +50.0 % +3.00 KiB +1.00 KiB +4.00 KiB +"
                     "200.00 MB/s +512.00 KiB +128.00 KiB +1.5 s\n"));
    const auto limited = larder({"job", "limit", "resnet", "--rate", "200MB/s", "--burst", "16MiB"});
    EXPECT_EQ(limited.output, "resnet may take 200.00 MB/s from the remote on this node\n");
    EXPECT_EQ(daemon.requests().back(),
              "PUT /v1/jobs/resnet/limit {\"rate_bytes_per_second\":200000000,\"burst_bytes\":16777216}");
    EXPECT_THAT(larder({"job", "limit", "resnet", "--rate", "0"}).output, HasSubstr("any rate"));
    EXPECT_EQ(larder({"job", "limit", "resnet", "--none", "--rate", "0"}).exit_code, 2);
}

TEST_F(LarderWithDaemonTest, ShowsTheLimitOfAJob) {
    daemon.answer("GET /v1/jobs", std::string("{\"jobs\":[") + kJob + "]}");
    EXPECT_EQ(larder({"job", "limit", "resnet"}).output, "resnet may take 200.00 MB/s from the remote on this node\n");
    EXPECT_EQ(larder({"job", "limit", "resnet", "--json"}).output,
              "{\"job\":\"resnet\",\"rate_bytes_per_second\":200000000,\"burst_bytes\":16777216}\n");
    const auto unknown = larder({"job", "limit", "resnt"});
    EXPECT_EQ(unknown.exit_code, 4);
    EXPECT_THAT(unknown.errors, HasSubstr("there are: resnet"));
}

TEST_F(LarderWithDaemonTest, RemovingALimitSaysWhatHoldsNow) {
    daemon.answer("GET /v1/jobs", std::string("{\"jobs\":[") + kJob + "]}");
    daemon.answer("DELETE /v1/jobs/resnet/limit", R"({"job":"resnet","rate_bytes_per_second":0,"burst_bytes":0})");
    daemon.answer("DELETE /v1/jobs/resnet/limit", R"({"job":"resnet","rate_bytes_per_second":5e6,"burst_bytes":1})");
    EXPECT_EQ(larder({"job", "limit", "resnet", "--none"}).output, "resnet has no limit now\n");
    EXPECT_EQ(larder({"job", "limit", "resnet", "--none"}).output,
              "resnet has the config's limit now: 5.00 MB/s from the remote on this node\n");
}

TEST_F(LarderWithDaemonTest, JobThatHasNotConnectedHasADashForItsDataset) {
    daemon.answer("GET /v1/jobs",
                  R"({"jobs":[{"job":"bert","dataset":"","sessions":0,"epoch":0,"remote_rate":2e8,"counters":{}}]})");
    EXPECT_THAT(larder({"jobs"}).output, HasSubstr("\nbert  -  "));
    daemon.answer("GET /v1/datasets", "{\"datasets\":[]}");
    daemon.answer("GET /v1/status", R"({"outages":[]})");
    EXPECT_THAT(larder({"top", "--count", "1", "--interval", "0.1"}).output, HasSubstr("\nbert  -  "));
}

TEST_F(LarderWithDaemonTest, LimitOfUnknownJobIsRefusedUnlessSetAhead) {
    daemon.answer("GET /v1/jobs", std::string("{\"jobs\":[") + kJob + "]}");
    daemon.answer("PUT /v1/jobs/resnt/limit", "{}");
    for (const char* const limit_option : {"--rate=200MB/s", "--none"}) {
        const auto refused = larder({"job", "limit", "resnt", limit_option});
        EXPECT_EQ(refused.exit_code, 4);
        EXPECT_THAT(refused.errors, HasSubstr("no job \"resnt\" has connected to this node; there are: resnet"));
        EXPECT_EQ(refused.errors.contains("Use --ahead"), std::string(limit_option) != "--none");
        EXPECT_EQ(daemon.requests().back(), "GET /v1/jobs");
    }
    EXPECT_EQ(larder({"job", "limit", "resnt", "--rate", "200MB/s", "--ahead"}).exit_code, 0);
    EXPECT_THAT(daemon.requests().back(), StartsWith("PUT /v1/jobs/resnt/limit"));
}

TEST_F(LarderWithDaemonTest, StatusShowsTheAllocator) {
    const auto status = [](const std::string& allocator) {
        return R"({"version":"1","pid":7,"uptime_s":1,"io":"io_uring","memory_bytes":1,"disk_bytes":1,"allocator":)" +
               allocator + "}";
    };
    const std::string allocator_socket = directory / "allocator.sock";
    const std::string with_allocator = R"({"endpoint":")" + allocator_socket +
                                       R"(","node":"a","connected":true,"problem":"","plan":3,"lease_left_s":0})";
    daemon.answer("GET /v1/status", status("null"));
    EXPECT_THAT(larder({"status"}).output, HasSubstr("allocator            none: quotas and limits are set by hand"));

    FakeAdminApi second(directory / "other.sock");
    second.answer("GET /v1/status", status(with_allocator));
    const auto ask = [&] { return larder({"--admin-socket", directory / "other.sock", "status"}).output; };
    EXPECT_THAT(ask(), HasSubstr(allocator_socket + ", DOES NOT ANSWER: "));
    // --allocator changes which allocator a command asks, not which one the daemon has.
    EXPECT_THAT(ask(), HasSubstr("start larder-allocator, or set allocator.endpoint of this daemon to another;"));
    FakeAdminApi allocator(allocator_socket);
    allocator.answer("GET /v1/status", R"({"pid":9,"started_unix_ms":1700000000000,"uptime_s":90,"plan":3,"nodes":1,)"
                                       R"("jobs_waiting":2,"jobs_running":1,"warning":"no groups"})");
    EXPECT_THAT(ask(), HasSubstr(allocator_socket + ", up for "));
    EXPECT_THAT(ask(), HasSubstr("jobs waiting: 2, running: 1; warning: no groups"));
}

TEST_F(LarderWithDaemonTest, DoctorFindsOtherVersionsProblemsAndWrongClocks) {
    const std::string printed = larder({"version"}).output;  // "larder 1.2.3\n"
    const std::string version = printed.substr(7, printed.size() - 8);
    const auto ask = [&](std::vector<std::string> more = {}) {
        std::vector<std::string> arguments{"doctor", "--seconds", "0.05", "--state", directory / ""};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return larder(arguments);
    };
    daemon.answer("GET /v1/datasets", R"({"datasets":[],"damaged":[]})");
    daemon.answer("GET /v1/status", R"({"version":"0.0.1","pid":0,"io":"io_uring","io_reason":"","allocator":null})");
    auto result = ask();
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.output, HasSubstr("to do        daemon      the daemon has version 0.0.1, larder " + version));
    EXPECT_THAT(result.output, HasSubstr("not checked  clock       there is no allocator to compare with\n"));

    FakeAdminApi second(directory / "other.sock");
    second.answer("GET /v1/datasets", R"({"datasets":[],"damaged":[]})");
    second.answer("GET /v1/status", R"({"version":")" + version +
                                        R"(","pid":0,"io":"threads","io_reason":"a seccomp profile",)"
                                        R"("allocator":null,"problems":["pets is damaged","a disk is full"]})");
    FakeAdminApi allocator(directory / "allocator.sock");
    allocator.answer("GET /v1/status", R"({"unix_time_ms":1700000000000})");
    result = ask({"--admin-socket", directory / "other.sock", "--allocator", directory / "allocator.sock"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.output, HasSubstr("works here, but the daemon uses threads. To do: a seccomp profile\n"));
    EXPECT_THAT(result.output, HasSubstr("the daemon has problems: pets is damaged; a disk is full. To do: see "));
    EXPECT_THAT(result.output, ContainsRegex("to do        clock       the allocator's clock is .* behind .*NTP"));

    result = ask({"--allocator", directory / "nobody.sock"});
    EXPECT_THAT(result.output, ContainsRegex("to do        clock       no allocator answers.*start the allocator"));
}

TEST_F(LarderWithDaemonTest, TopFallsBackToListsWithoutStream) {
    for (const std::string list : {"nodes", "datasets", "jobs"}) {
        daemon.answer("GET /v1/" + list, R"({"plan":7,")" + list + R"(":[]})");
    }
    const auto result = larder({"top", "--allocator", socket, "--count", "1"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.output, HasSubstr("no node has reported yet"));
    EXPECT_THAT(result.errors, HasSubstr("nothing at GET /v1/events/stream; polling instead"));
}

TEST_F(LarderWithDaemonTest, TopOfClusterSortsAndFiltersRows) {
    const auto node = [](const std::string& name, int used_bytes) {
        return R"({"name":")" + name + R"(","alive":true,"jobs":[],"used":{"memory_bytes":)" +
               std::to_string(used_bytes) + R"(,"disk_bytes":0}})";
    };
    daemon.answer("GET /v1/nodes", R"({"plan":7,"nodes":[)" + node("alpha", 9'000) + "," + node("beta", 70'000) + "," +
                                       node("gamma", 800'000) + "]}");
    for (const std::string list : {"datasets", "jobs"}) {
        daemon.answer("GET /v1/" + list, R"({"plan":7,")" + list + R"(":[]})");
    }
    const auto ask = [&](const std::vector<std::string>& options) {
        std::vector<std::string> arguments{"top", "--allocator", socket, "--count", "1"};
        arguments.insert(arguments.end(), options.begin(), options.end());
        return larder(arguments);
    };
    EXPECT_THAT(ask({"--sort", "used"}).output, ContainsRegex("gamma(.|\n)*beta(.|\n)*alpha"));
    const auto filtered = ask({"--filter", "TA"});
    EXPECT_THAT(filtered.output, AllOf(HasSubstr("beta"), Not(HasSubstr("alpha")), Not(HasSubstr("gamma"))));
    EXPECT_EQ(ask({"--sort", "f*"}).exit_code, 0);
    const auto wrong = ask({"--sort", "colour"});
    EXPECT_EQ(wrong.exit_code, 2);
    EXPECT_THAT(wrong.errors, HasSubstr("--sort COLOUR is no column here: NODE, CACHE,"));
}

TEST_F(LarderWithDaemonTest, TopReconnectsAfterLastEventItReceived) {
    const std::string status = "event: status\ndata: {\"plan\":7,\"nodes\":[],\"datasets\":[],\"jobs\":[]}\n\n";
    daemon.answer("GET /v1/events/stream",
                  {200, "text/event-stream", "id: 5\nevent: pin_set\ndata: {\"message\":\"pinned\"}\n\n" + status, {}});
    daemon.answer("GET /v1/events/stream", {200, "text/event-stream", status, {}});
    const auto result = larder({"top", "--allocator", socket, "--count", "2", "--interval", "0.1"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.output, HasSubstr("last event: pinned"));
    EXPECT_THAT(result.errors, HasSubstr("the allocator ended the stream; connecting again"));
    EXPECT_THAT(daemon.queries(), ElementsAre("after=0&status_ms=100", "after=5&status_ms=100"));
}

TEST_F(LarderWithDaemonTest, TopShowsRatesBetweenTwoPolls) {
    std::string later = kJob;
    later.replace(later.find("\"bytes_remote\":4096"), 19, "\"bytes_remote\":4096000");
    daemon.answer("GET /v1/datasets", std::string("{\"datasets\":[") + kDataset + "]}");
    daemon.answer("GET /v1/jobs", std::string("{\"jobs\":[") + kJob + "]}");
    daemon.answer("GET /v1/jobs", "{\"jobs\":[" + later + "]}");
    daemon.answer("GET /v1/status", R"({"outages":[]})");
    const auto result = larder({"top", "--count", "1", "--interval", "0.1"});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output,
                MatchesRegex("DATASET(.|\n)*images +1.00 MiB +25.0 % +- +0 B/s +0 B/s +0 B/s +0 B/s\n(.|\n)*"));
    EXPECT_THAT(result.output, MatchesRegex("(.|\n)*resnet  images +2 +3 +- +0 B/s +0 B/s +[0-9.]+ [KM]B/s(.|\n)*"));
    EXPECT_THAT(larder({"top", "--count", "1", "--interval", "0.1", "--json"}).output, StartsWith("{\"datasets\":[{"));
}

}  // namespace
}  // namespace larder
