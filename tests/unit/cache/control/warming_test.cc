#include "cache/control/warming.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/remote/remote_place.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using Names = std::vector<std::string>;

// Warming with the parts that it has in the daemon. A task of a dataset waits for the allocator to set the quota: the
// clock stands still, so it waits until the test lets it go on.
class WarmingTest : public testing::Test {
protected:
    void SetUp() override {
        auto opened = Index::open({.directory = ""});
        ASSERT_TRUE(opened) << opened.error().message;
        index = std::move(opened->index);
        auto started = ShardThread::start(DeviceKind::threads, {}, "larder-shard");
        ASSERT_TRUE(started) << started.error().message;
        shard = std::move(*started);
        datasets = std::make_unique<Datasets>(directory.path().string(), tasks, *index, files, control);
        scans = std::make_unique<Scans>(clock, *datasets, job_limits, tasks);
        warming = std::make_unique<Warming>(*datasets, *scans, tasks);
        for (const char* name : {"images", "texts"}) {
            NodeDataset dataset;
            dataset.record.definition.name = name;
            dataset.record.dataset_id = next_id++;
            dataset.record.quota = {.memory_bytes = 100, .disk_bytes = 0};
            dataset.shard = shard.get();
            serve(dataset.record);
            datasets->add(std::move(dataset));
        }
    }
    void TearDown() override {
        tasks.stop();
        control.poll();
    }

    // Gives the shard a dataset of one object.
    void serve(const DatasetRecord& record) {
        const std::filesystem::path root = directory.path() / record.definition.name;
        std::filesystem::create_directory(root);
        std::ofstream(root / "0.bin") << std::string(60, 'x');
        DatasetContent content;
        content.add_object("0.bin", 60, 1, protocol::kNoLabel);
        const std::string url = "file://" + root.string();
        const std::string path = root.string() + ".manifest";
        ASSERT_TRUE(write_manifest(content, {.url = url, .format = protocol::Format::raw},
                                   {.path = path, .dataset_id = record.dataset_id}));
        const auto manifest = std::make_shared<const protocol::Manifest>(*protocol::Manifest::open(path));
        const auto place = RemotePlace::open(url, {}, nullptr);
        ASSERT_TRUE(place) << place.error().message;
        shard->call([&](Shard& served) {
            auto remote = (*place)->remote(served.device());
            EXPECT_TRUE(remote) << remote.error().message;
            const StoreOptions options{.dataset_id = record.dataset_id,
                                       .block_id_end = static_cast<std::uint32_t>(manifest->header().block_id_end),
                                       .block_bytes_max = manifest->header().block_bytes_max,
                                       .segment_directory = root.string() + ".segments",
                                       .disk_alignment = 512};
            served.add_dataset({.definition = record.definition,
                                .store = std::make_unique<DatasetStore>(options, served.device(), clock, index.get()),
                                .remote = std::move(*remote),
                                .quota = record.quota,
                                .manifest = manifest});
        });
    }
    void follow(const Names& listed) { warming->follow(listed); }
    std::uint64_t task_of(const std::string& dataset) const { return datasets->at(dataset).task; }
    TaskState state_of(std::uint64_t task) const { return tasks.view(task)->state; }
    // Runs the control thread's work until the task has ended.
    void wait_for(std::uint64_t task) {
        while (state_of(task) == TaskState::running) control.run_one();
    }
    // Lets the dataset's task go on, and waits for its end.
    void end_task_of(const std::string& dataset) {
        *datasets->at(dataset).quota_assigned = true;
        wait_for(task_of(dataset));
        *datasets->at(dataset).quota_assigned = false;
    }

    larder::test::TempDirectory directory;
    ManualClock clock;
    boost::asio::io_context control;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{control.get_executor()};
    Tasks tasks{clock, [this](std::function<void()> posted) { boost::asio::post(control, std::move(posted)); }};
    WorkThread files{"larder-files"};
    JobLimits job_limits;
    std::unique_ptr<Index> index;
    std::unique_ptr<ShardThread> shard;
    std::unique_ptr<Datasets> datasets;
    std::unique_ptr<Scans> scans;
    std::unique_ptr<Warming> warming;
    std::uint64_t next_id = 1;
};

TEST_F(WarmingTest, ListedDatasetHasOneTaskHoweverManyPlansListIt) {
    follow({"images"});
    const std::uint64_t first = task_of("images");
    ASSERT_NE(first, 0u);
    EXPECT_EQ(tasks.view(first)->kind, "warm");
    EXPECT_EQ(task_of("texts"), 0u);
    follow({"images"});
    EXPECT_EQ(task_of("images"), first);
    EXPECT_EQ(warming->warmed(), Names{}) << "it still runs";
    end_task_of("images");
    follow({"images"});
    EXPECT_EQ(task_of("images"), first) << "its quota is the same";
    EXPECT_EQ(warming->warmed(), Names{"images"});
}

TEST_F(WarmingTest, EndOfATaskCountsOnceAPlanHasSeenIt) {
    follow({"images"});
    end_task_of("images");
    EXPECT_EQ(warming->warmed(), Names{});
    follow({"images"});
    EXPECT_EQ(warming->warmed(), Names{"images"});
}

TEST_F(WarmingTest, DatasetThatIsNoLongerListedIsCancelled) {
    follow({"images", "texts"});
    const std::uint64_t images = task_of("images");
    const std::uint64_t texts = task_of("texts");
    follow({"texts"});
    wait_for(images);
    EXPECT_EQ(state_of(images), TaskState::cancelled);
    EXPECT_EQ(state_of(texts), TaskState::running);
    follow({"images", "texts"});
    EXPECT_NE(task_of("images"), images) << "it is listed again";
    EXPECT_EQ(task_of("texts"), texts);
}

TEST_F(WarmingTest, ChangedQuotaIsWarmedAgainOnceTheTaskHasEnded) {
    follow({"images"});
    const std::uint64_t first = task_of("images");
    datasets->at("images").record.quota.memory_bytes = 200;
    follow({"images"});
    EXPECT_EQ(task_of("images"), first) << "a dataset has one task at a time";
    end_task_of("images");
    follow({"images"});
    EXPECT_NE(task_of("images"), first);
    EXPECT_EQ(warming->warmed(), Names{});
    end_task_of("images");
    follow({"images"});
    EXPECT_EQ(warming->warmed(), Names{"images"});
    datasets->at("images").record.quota.memory_bytes = 300;
    EXPECT_EQ(warming->warmed(), Names{}) << "it is not warmed to this quota";
}

TEST_F(WarmingTest, DatasetThatCannotBeWarmedYetIsTriedWithTheNextPlan) {
    datasets->at("images").offline = Error{ErrorCode::unavailable, "no route"};
    follow({"images", "unknown"});
    EXPECT_EQ(task_of("images"), 0u);
    EXPECT_EQ(warming->warmed(), Names{});
    datasets->at("images").offline.reset();
    follow({"images", "unknown"});
    EXPECT_NE(task_of("images"), 0u);
}

TEST_F(WarmingTest, RemovedDatasetIsNotWarmed) {
    follow({"images"});
    end_task_of("images");
    follow({"images"});
    ASSERT_EQ(warming->warmed(), Names{"images"});
    datasets->all().erase("images");
    EXPECT_EQ(warming->warmed(), Names{});
    follow({"images"});
    EXPECT_EQ(warming->warmed(), Names{});
}

}  // namespace
}  // namespace larder::cache
