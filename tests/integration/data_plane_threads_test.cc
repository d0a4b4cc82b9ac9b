// Several data-plane threads in one daemon. Datasets are spread over them. Rates, quotas and counters that belong to a
// job or to the node hold over all threads.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "loader/larder.h"
#include "tests/support/read_epoch.h"
#include "tests/support/sample_data.h"
#include "tests/support/test_daemon.h"
#include "tests/support/test_units.h"

namespace larder::test {
namespace {

constexpr unsigned kThreads = 3;

class DataPlaneThreads : public testing::Test {
protected:
    struct Dataset {
        std::string name;
        std::string root;
        std::map<std::string, std::string> files;
        std::uint64_t bytes = 0;
    };

    DataPlaneThreads() {
        for (std::size_t i = 0; i < datasets.size(); ++i) {
            Dataset& dataset = datasets[i];
            dataset.name = "d" + std::to_string(i);
            dataset.root = daemon.state / dataset.name;
            const TreeOptions tree{.class_count = 2, .files_per_class = 20, .bytes_max = 40'000, .seed = i};
            for (NamedBytes& file : make_tree(dataset.root, tree)) {
                dataset.bytes += file.content.size();
                dataset.files.emplace(std::move(file.name), std::move(file.content));
            }
        }
    }

    Loader open(const Dataset& dataset, const std::string& job) const {
        LoaderOptions options;
        options.dataset = dataset.name;
        options.job = job;
        options.socket = daemon.socket();
        options.memory_budget_bytes = 2 * kMiB;
        options.batch_size = 7;
        auto loader = Loader::open(options);
        if (!loader) throw std::runtime_error(loader.error().message);
        return std::move(*loader);
    }

    std::uint64_t counter(const Dataset& dataset, const char* name) const {
        return number_at(daemon.dataset(dataset.name).at("counters"), name);
    }

    TestDaemon daemon{[](cache::DaemonConfig& config) { config.data_plane_threads = kThreads; }};
    std::array<Dataset, 4> datasets;
};

TEST_F(DataPlaneThreads, AllDatasetsAreReadAtOnceWhileQuotasChange) {
    EXPECT_EQ(number_at(daemon.get("/v1/status").body, "data_plane_threads"), kThreads);
    for (const Dataset& dataset : datasets) daemon.add(dataset.name, dataset.root, dataset.bytes / 2, 32 * kMiB);
    constexpr std::uint64_t kEpochs = 3;
    std::atomic<bool> done = false;
    {
        const std::jthread quotas([&] {
            for (std::uint64_t i = 0; !done; ++i) {
                const Dataset& dataset = datasets[i % datasets.size()];
                const auto set = daemon.put("/v1/datasets/" + dataset.name + "/quota",
                                            {{"memory_bytes", i % 3 * dataset.bytes / 3}, {"disk_bytes", 32 * kMiB}});
                ASSERT_EQ(set.status, 200u) << set.text;
            }
        });
        std::vector<std::jthread> readers;
        for (const Dataset& dataset : datasets) {
            for (const char* job : {"a", "b"}) {
                readers.emplace_back([&dataset, job, this] {
                    Loader loader = open(dataset, job);
                    for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch) read_epoch(loader, dataset.files);
                });
            }
        }
        for (std::jthread& reader : readers) reader.join();
        done = true;
    }
    for (const Dataset& dataset : datasets) {
        const std::uint64_t served =
            counter(dataset, "memory_hits") + counter(dataset, "disk_hits") + counter(dataset, "misses");
        EXPECT_EQ(served, 2 * kEpochs * dataset.files.size()) << dataset.name;
    }
}

TEST_F(DataPlaneThreads, JobOnAllThreadsKeepsItsLimit) {
    constexpr double kRate = 8e6;
    constexpr std::uint64_t kBurst = 64 << 10;
    constexpr std::uint64_t kLargestBlock = 40'000;
    const auto began = std::chrono::steady_clock::now();
    daemon.put("/v1/jobs/slow/limit", {{"rate_bytes_per_second", kRate}, {"burst_bytes", kBurst}});
    for (const Dataset& dataset : datasets) daemon.add(dataset.name, dataset.root);
    {
        std::vector<std::jthread> readers;
        for (const Dataset& dataset : datasets) {
            readers.emplace_back([&dataset, this] {
                Loader loader = open(dataset, "slow");
                read_epoch(loader, dataset.files);
            });
        }
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    std::uint64_t taken = 0;
    for (const Dataset& dataset : datasets) taken += counter(dataset, "bytes_remote_read");
    EXPECT_LE(static_cast<double>(taken), kRate * took.count() + static_cast<double>(kBurst + kLargestBlock));
    EXPECT_GT(taken, 2 * (kBurst + kLargestBlock)) << "the limit was never reached";
}

TEST_F(DataPlaneThreads, RestartFindsDiskBlocksOfEachThread) {
    for (const Dataset& dataset : datasets) {
        daemon.add(dataset.name, dataset.root, 0, 32 * kMiB);
        Loader loader = open(dataset, "job");
        read_epoch(loader, dataset.files);
        TestDaemon::wait_until(
            [&] { return number_at(daemon.dataset(dataset.name).at("used"), "blocks") == dataset.files.size(); });
    }
    daemon.stop();
    daemon.start();
    for (const Dataset& dataset : datasets) {
        Loader loader = open(dataset, "job");
        read_epoch(loader, dataset.files);
        EXPECT_EQ(counter(dataset, "disk_hits"), dataset.files.size());
    }
}

}  // namespace
}  // namespace larder::test
