// The real daemon as an ordinary user with that user's limit of locked memory: it still serves, from buffers that are
// not registered with the kernel, and says so in one line.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/server/http.h"
#include "loader/larder.h"
#include "tests/support/program.h"
#include "tests/support/read_epoch.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

extern char** environ;

namespace larder {
namespace {

using testing::SizeIs;

constexpr uid_t kNobody = 65534;

class UnprivilegedDaemon : public testing::Test {
protected:
    void SetUp() override {
        ASSERT_EQ(::chmod(directory.path().c_str(), 0755), 0);
        ASSERT_EQ(::mkdir(state.c_str(), 0755), 0);
        if (::geteuid() == 0) {
            as_user = {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
            ASSERT_EQ(::chown(state.c_str(), kNobody, kNobody), 0);
        }
        for (test::NamedBytes& file : test::make_tree(directory.path() / "data", {.bytes_max = 100'000})) {
            files.emplace(std::move(file.name), std::move(file.content));
        }
        // An ordinary user may have no access to the build directory.
        const std::filesystem::path program = LARDERD_PROGRAM;
        for (const std::string name : {"larderd", "larder-check-lmdb"}) {
            std::filesystem::copy_file(program.parent_path() / name, directory / name);
        }
        const auto tried = test::run_program(command({larderd, "--version"}));
        ASSERT_EQ(tried.exit_code, 0) << tried.errors;
    }
    void TearDown() override {
        if (pid <= 0) return;
        ::kill(pid, SIGTERM);
        int status = 0;
        ASSERT_EQ(::waitpid(pid, &status, 0), pid);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }

    // The command that runs the program as an ordinary user with 8 MiB of locked memory, the kernel's default.
    std::vector<std::string> command(const std::vector<std::string>& program) const {
        std::vector<std::string> all{"/usr/bin/prlimit", "--memlock=8388608"};
        all.insert(all.end(), as_user.begin(), as_user.end());
        all.insert(all.end(), program.begin(), program.end());
        return all;
    }

    void start() {
        const auto arguments = command(
            {larderd, "--state-directory", state, "--memory", "64 MiB", "--disk", "64 MiB", "--log.file", log_file});
        std::vector<char*> argv;
        for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
        argv.push_back(nullptr);
        ASSERT_EQ(::posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ), 0);
        while (!http_request(admin, "GET", "/healthz")) {
            if (::waitpid(pid, nullptr, WNOHANG) != 0) {
                pid = -1;
                FAIL() << "the daemon ended by itself: " << test::read_bytes(log_file);
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    }

    std::string get(const std::string& target) const {
        const auto answer = http_request(admin, "GET", target);
        return answer && answer->status == 200 ? answer->body : "";
    }

    void read_epoch(Loader& loader) const { test::read_epoch(loader, files); }

    std::vector<std::string> log_lines(const std::string& text) const {
        std::ifstream log(log_file);
        std::vector<std::string> lines;
        for (std::string line; std::getline(log, line);) {
            if (line.find(text) != std::string::npos) lines.push_back(line);
        }
        return lines;
    }

    test::TempDirectory directory;
    const std::string larderd = directory / "larderd";
    const std::string state = directory / "state";
    const std::string admin = state + "/admin.sock";
    const std::string log_file = state + "/larderd.log";
    std::vector<std::string> as_user;
    std::map<std::string, std::string> files;
    pid_t pid = -1;
};

TEST_F(UnprivilegedDaemon, ServesFromUnregisteredBuffersAndLogsOnce) {
    ASSERT_NO_FATAL_FAILURE(start());
    struct stat socket{};
    ASSERT_EQ(::stat(admin.c_str(), &socket), 0);
    ASSERT_NE(socket.st_uid, 0u) << "the daemon must not run as root";
    const auto added = http_request(admin, "POST", "/v1/datasets",
                                    R"({"name":"d","url":"file://)" + (directory / "data") +
                                        R"(","quota":{"memory_bytes":1000000,"disk_bytes":33554432}})");
    ASSERT_TRUE(added.has_value() && added->status == 202) << (added ? added->body : added.error().message);
    while (get("/v1/datasets/d").empty()) std::this_thread::sleep_for(std::chrono::milliseconds(2));

    // Each loader's memory alone exceeds the limit of locked memory. Two sessions still log only one line.
    std::vector<Loader> loaders;
    for (int i = 0; i < 2; ++i) {
        auto loader = Loader::open(
            {{.dataset = "d", .socket = state + "/larderd.sock", .memory_budget_bytes = std::uint64_t{32} << 20}, 7});
        ASSERT_TRUE(loader.has_value()) << loader.error().message;
        loaders.push_back(std::move(*loader));
    }
    read_epoch(loaders[0]);
    const std::string all_cached = R"("blocks":)" + std::to_string(files.size()) + R"(,"segments")";
    while (get("/v1/datasets/d").find(all_cached) == std::string::npos) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    read_epoch(loaders[0]);
    read_epoch(loaders[1]);
    EXPECT_EQ(loaders[0].statistics().remote_blocks, files.size());
    for (const Loader& loader : loaders) {
        EXPECT_EQ(loader.statistics().memory_blocks + loader.statistics().disk_blocks, files.size());
        EXPECT_GT(loader.statistics().disk_blocks, 0u);
    }

    // If the kernel refuses io_uring there are no buffers to register. The daemon then says that instead, also once.
    if (get("/v1/status").find(R"("io":"io_uring")") == std::string::npos) {
        EXPECT_THAT(log_lines("io_uring is not used"), SizeIs(1));
        EXPECT_THAT(log_lines(" error "), SizeIs(0));
        return;
    }
    EXPECT_THAT(log_lines("not registered"), SizeIs(1));
    EXPECT_THAT(log_lines("MEMLOCK"), SizeIs(1));
    EXPECT_THAT(log_lines(" warning "), SizeIs(0));
    EXPECT_THAT(log_lines(" error "), SizeIs(0));
}

}  // namespace
}  // namespace larder
