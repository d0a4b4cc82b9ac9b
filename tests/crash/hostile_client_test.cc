// The real daemon with a client that misuses everything it is handed. The client's neighbour on the same data-plane
// thread keeps reading, and SIGTERM still ends the daemon.

#include "tests/support/hostile_client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/server/http.h"
#include "loader/larder.h"
#include "tests/support/lingering_socket.h"
#include "tests/support/read_epoch.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_units.h"

extern char** environ;

namespace larder {
namespace {

using test::HostileClient;
using test::kMiB;

constexpr const char* kDataset = "shared";

class HostileNeighbour : public testing::Test {
protected:
    void SetUp() override {
        for (test::NamedBytes& file : test::make_tree(root, {.class_count = 2, .files_per_class = 40})) {
            files.emplace(std::move(file.name), std::move(file.content));
        }
        std::vector<std::string> arguments = {
            LARDERD_PROGRAM, "--state-directory",    state, "--memory", "64 MiB", "--disk", "64 MiB", "--log.level",
            "error",         "--data-plane-threads", "1"};
        std::vector<char*> argv;
        for (std::string& argument : arguments) argv.push_back(argument.data());
        argv.push_back(nullptr);
        ASSERT_EQ(::posix_spawn(&daemon, LARDERD_PROGRAM, nullptr, nullptr, argv.data(), environ), 0);
        const std::string admin = state + "/admin.sock";
        while (!http_request(admin, "GET", "/healthz")) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        const auto added = http_request(
            admin, "POST", "/v1/datasets",
            R"({"name":"shared","url":"file://)" + root + R"(","quota":{"memory_bytes":32000000,"disk_bytes":0}})");
        ASSERT_TRUE(added.has_value() && added->status == 202) << (added ? added->body : added.error().message);
        const auto indexed = [&] {
            const auto answer = http_request(admin, "GET", "/v1/datasets/shared");
            return answer && answer->status == 200;
        };
        while (!indexed()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    void TearDown() override {
        ASSERT_EQ(::kill(daemon, SIGTERM), 0);
        int status = 0;
        ASSERT_EQ(::waitpid(daemon, &status, 0), daemon);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "SIGTERM did not end the daemon cleanly";
    }

    Loader open_neighbour() const {
        LoaderOptions options;
        options.dataset = kDataset;
        options.job = "neighbour";
        options.socket = socket();
        options.memory_budget_bytes = 2 * kMiB;
        options.batch_size = 7;
        auto loader = Loader::open(options);
        EXPECT_TRUE(loader.has_value()) << loader.error().message;
        return std::move(*loader);
    }
    HostileClient open_hostile() const {
        auto client = HostileClient::open(socket(), {.dataset = kDataset});
        EXPECT_TRUE(client.has_value()) << client.error().message;
        return std::move(*client);
    }
    void read_epoch(Loader& loader) const { test::read_epoch(loader, files); }
    std::string socket() const { return state + "/larderd.sock"; }

    test::TempDirectory directory;
    std::string state = directory / "state";
    std::string root = directory / "data";
    std::map<std::string, std::string> files;
    pid_t daemon = -1;
};

TEST_F(HostileNeighbour, FilledEventsDelayNoOtherSession) {
    Loader neighbour = open_neighbour();
    read_epoch(neighbour);
    {
        HostileClient hostile = open_hostile();
        constexpr std::uint64_t kFull = 0xfffffffffffffffe;
        for (const FileDescriptor& fd : hostile.handed()) {
            EXPECT_EQ(::fcntl(fd.get(), F_SETFL, 0), 0);
            struct stat status{};
            EXPECT_EQ(::fstat(fd.get(), &status), 0);
            // An eventfd that holds this value blocks every write. In the rings it would only end the client's own
            // session.
            if (!S_ISREG(status.st_mode)) {
                EXPECT_EQ(::write(fd.get(), &kFull, sizeof kFull), ssize_t{sizeof kFull});
            }
        }
        hostile.control().client_sleeping.store(1);
        EXPECT_TRUE(hostile.fetch(0));
        read_epoch(neighbour);
        while (!hostile.answered()) std::this_thread::yield();
        read_epoch(neighbour);
    }
    read_epoch(neighbour);
    Loader late = open_neighbour();
    read_epoch(late);
}

// The process that discards a message closes the descriptors in it, and a client can choose descriptors that are slow
// to close. A new kernel refuses to send such a descriptor (EPERM). An older kernel sends it.
TEST_F(HostileNeighbour, SlowToCloseDescriptorDelaysNoOtherSession) {
    Loader neighbour = open_neighbour();
    HostileClient hostile = open_hostile();
    test::LingeringSocket lingering(3600);
    EXPECT_THAT(test::send_descriptor(hostile.socket(), lingering.release()), testing::AnyOf(0, EPERM));
    read_epoch(neighbour);
    Loader late = open_neighbour();
    read_epoch(late);
}

TEST_F(HostileNeighbour, EventEmptiedByClientDelaysNoOtherSession) {
    Loader neighbour = open_neighbour();
    HostileClient hostile = open_hostile();
    EXPECT_EQ(::fcntl(hostile.request_event(), F_SETFL, 0), 0);
    std::atomic<bool> done = false;
    {
        const std::jthread racer([&] {
            std::uint64_t count = 1;
            const iovec part{&count, sizeof count};
            // The pause varies, so that the client reads at every moment between the daemon's wake-up and its read.
            for (unsigned turn = 0; !done; ++turn) {
                count = 1;
                [[maybe_unused]] const auto rung = ::write(hostile.request_event(), &count, sizeof count);
                for (unsigned pause = turn % 256 * 16; pause > 0; --pause) asm volatile("" ::: "memory");
                [[maybe_unused]] const auto taken = ::preadv2(hostile.request_event(), &part, 1, -1, RWF_NOWAIT);
            }
        });
        for (int epoch = 0; epoch < 1000; ++epoch) read_epoch(neighbour);
        done = true;
    }
    read_epoch(neighbour);
}

}  // namespace
}  // namespace larder
