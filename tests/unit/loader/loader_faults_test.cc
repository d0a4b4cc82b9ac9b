// The loader under faults: changed objects, forks, and a daemon that dies, hangs up, lies or drops segments.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/loader/loader_fixture.h"

namespace larder::test {
namespace {

using protocol::BlockStatus;

TEST_F(LoaderTest, ChangedObjectIsNamedAndRetried) {
    make_raw(40);
    std::atomic<bool> changed = true;
    daemon->stop();
    daemon->behaviour.status = [&](std::uint32_t block) {
        return block == 5 && changed ? BlockStatus::object_changed : BlockStatus::ok;
    };
    daemon->start();
    Loader loader = open(options());
    int errors = 0;
    for (;;) {
        auto batch = loader.next();
        if (!batch) {
            EXPECT_EQ(batch.error().code, ErrorCode::changed);
            EXPECT_NE(batch.error().message.find("class_000/file_00005.bin"), std::string::npos);
            if (++errors == 2) changed = false;
            continue;
        }
        if (!*batch) break;
        count(**batch);
    }
    EXPECT_EQ(errors, 2);
    expect_each_sample_once();
}

TEST_F(LoaderTest, SkipFailedSkipsFailedObjects) {
    make_raw(40);
    daemon->stop();
    daemon->behaviour.status = [](std::uint32_t block) {
        return block == 5    ? BlockStatus::object_changed
               : block == 6  ? BlockStatus::object_missing
               : block == 20 ? BlockStatus::remote_failed
                             : BlockStatus::ok;
    };
    daemon->start();
    auto settings = options();
    settings.skip_failed = true;
    Loader loader = open(settings);
    EXPECT_FALSE(take(loader));
    EXPECT_EQ(seen.size(), 37u);
    EXPECT_EQ(loader.statistics().skipped_samples, 3u);
    EXPECT_EQ(loader.statistics().samples, 37u);
}

TEST_F(LoaderTest, EachFailureKindHasItsErrorCode) {
    make_raw(40);
    std::atomic<BlockStatus> status = BlockStatus::object_missing;
    daemon->stop();
    daemon->behaviour.status = [&](std::uint32_t) { return status.load(); };
    daemon->start();
    Loader loader = open(options());
    EXPECT_EQ(loader.next().error().code, ErrorCode::not_found);
    status = BlockStatus::object_truncated;
    EXPECT_EQ(loader.next().error().code, ErrorCode::changed);
    status = BlockStatus::remote_failed;
    EXPECT_EQ(loader.next().error().code, ErrorCode::io);
}

TEST_F(LoaderTest, FailureMessageNamesCauseAndRemedy) {
    make_raw(40);
    std::atomic<BlockStatus> status = BlockStatus::remote_failed;
    daemon->stop();
    daemon->behaviour.status = [&](std::uint32_t) { return status.load(); };
    daemon->behaviour.reason = "https://host/a: HTTP 403, AccessDenied";
    daemon->start();
    Loader loader = open(options());
    const auto message = [&] { return loader.next().error().message; };
    EXPECT_TRUE(message().ends_with("could not be read from the remote: https://host/a: HTTP 403, AccessDenied"));
    status = BlockStatus::object_missing;
    EXPECT_NE(message().find("is gone from the remote: put it back, or run `larder dataset index test`"),
              std::string::npos);
    status = BlockStatus::object_corrupt;
    const std::string corrupt = message();
    EXPECT_NE(corrupt.find(" bytes from offset 0 do not have the checksum"), std::string::npos) << corrupt;
    EXPECT_NE(corrupt.find("put a good copy in its place and run `larder dataset index test`"), std::string::npos);
}

TEST_F(LoaderTest, AttachIsRetriedWhenTheDaemonHangsUp) {
    make_raw(40);
    daemon->behaviour.attaches_refused = 2;
    Loader loader = open(options());
    EXPECT_FALSE(take(loader));
    EXPECT_EQ(daemon->sessions_opened, 3u);
    expect_each_sample_once();
}

TEST_F(LoaderTest, RepeatedDaemonLossIsRetriedUntilTheTimeout) {
    make_raw(40);
    daemon->behaviour.sessions_cut = 25;
    Loader loader = open(options());
    EXPECT_FALSE(take(loader));
    EXPECT_EQ(daemon->sessions_opened, 26u);
    expect_each_sample_once();

    auto impatient = options();
    impatient.reconnect_timeout_ms = 100;
    Loader other = open(impatient);
    daemon->behaviour.sessions_cut = 1'000'000;
    const auto batch = other.next();
    ASSERT_FALSE(batch.has_value());
    EXPECT_EQ(batch.error().code, ErrorCode::unavailable);
    EXPECT_NE(batch.error().message.find("within 100 ms"), std::string::npos) << batch.error().message;
}

TEST_F(LoaderTest, DaemonRestartLosesAndRepeatsNoSamples) {
    make_shards(4, 150, 32'000, 1);
    daemon->behaviour.memory_every = 3;
    auto settings = options();
    settings.memory_budget_bytes = std::uint64_t{6} << 20;  // too small to have the whole epoch before a restart
    Loader loader = open(settings);
    std::vector<Batch> held;
    for (int i = 0; i < 4; ++i) {
        auto batch = loader.next();
        ASSERT_TRUE(batch.has_value() && *batch);
        held.push_back(std::move(**batch));
        if (i % 2 == 1) {
            daemon->stop();
            daemon->start();
        }
    }
    for (const Batch& batch : held) count(batch);
    EXPECT_TRUE(take(loader, 5));
    daemon->stop();
    daemon->start();
    held.clear();
    EXPECT_FALSE(take(loader));
    expect_each_sample_once();
    EXPECT_GE(loader.statistics().reconnects, 1u);
}

TEST_F(LoaderTest, SurvivesHangUpsMidBatch) {
    make_raw(200, 4000);
    auto settings = options();
    settings.batch_size = 32;
    Loader loader = open(settings);
    for (int i = 0; i < 12; ++i) {
        daemon->behaviour.hang_up_after = 3 + 7 * i;
        take(loader, 2);
    }
    daemon->behaviour.hang_up_after = -1;
    seen.clear();
    ASSERT_TRUE(loader.start_epoch(9).has_value());
    daemon->behaviour.hang_up_after = 50;
    EXPECT_FALSE(take(loader));
    expect_each_sample_once();
}

TEST_F(LoaderTest, BrokenCompletionsEndTheSessionNotTheEpoch) {
    make_raw(80);
    std::atomic<int> kind = 0;
    daemon->stop();
    daemon->behaviour.corrupt = [&](protocol::Completion& completion) {
        switch (kind.exchange(0)) {
            case 1: completion.tag = 0xffffffff; break;
            case 2: completion.length += 1; break;
            case 3: completion.offset += 4096; break;
            case 4: completion.segment = 77; break;
            case 5: completion.tag += 1; break;
        }
    };
    daemon->start();
    Loader loader = open(options());
    for (int i = 1; i <= 5; ++i) {
        const std::uint64_t before = loader.statistics().reconnects;
        kind = i;
        EXPECT_FALSE(take(loader));
        if (!HasFailure()) expect_each_sample_once();
        EXPECT_EQ(loader.statistics().reconnects, before + 1) << "kind " << i;
    }
}

TEST_F(LoaderTest, LostDaemonIsAnErrorAfterTheTimeout) {
    make_raw(80);
    auto settings = options();
    settings.reconnect_timeout_ms = 30;
    Loader loader = open(settings);
    EXPECT_TRUE(take(loader, 1));
    daemon->stop();
    Result<std::optional<Batch>> batch = std::optional<Batch>{};
    do {
        batch = loader.next();
        if (batch && *batch) count(**batch);
    } while (batch && *batch);
    ASSERT_FALSE(batch.has_value());
    EXPECT_EQ(batch.error().code, ErrorCode::unavailable);
    EXPECT_NE(batch.error().message.find("30 ms"), std::string::npos);
    EXPECT_NE(batch.error().message.find(daemon->socket_path()), std::string::npos);
    daemon->start();
    EXPECT_FALSE(take(loader));
    expect_each_sample_once();
}

TEST_F(LoaderTest, MissingDaemonErrorSaysHowToStartOne) {
    LoaderOptions settings;
    settings.dataset = "test";
    settings.socket = directory / "none.sock";
    const std::map<std::int64_t, std::string> texts{{0, "answered at once"}, {50, "answered within 50 ms"}};
    for (const auto& [timeout_ms, text] : texts) {
        settings.reconnect_timeout_ms = timeout_ms;
        auto loader = Loader::open(settings);
        ASSERT_FALSE(loader.has_value());
        EXPECT_EQ(loader.error().code, ErrorCode::unavailable);
        EXPECT_NE(loader.error().message.find("larder up"), std::string::npos);
        EXPECT_NE(loader.error().message.find(text), std::string::npos) << loader.error().message;
    }
    settings.socket = std::string(200, 'x');
    EXPECT_EQ(Loader::open(settings).error().code, ErrorCode::invalid_argument);
}

FakeDaemon* absent_daemon = nullptr;
int away_calls = 0;

// Starts the daemon only when the opening call polls `interrupted`, that is, while the call waits.
void start_while_opening(ConnectOptions& settings, FakeDaemon& daemon) {
    daemon.stop();
    absent_daemon = &daemon;
    away_calls = 0;
    settings.interrupted = [] {
        if (away_calls > 0 && absent_daemon != nullptr) std::exchange(absent_daemon, nullptr)->start();
        return false;
    };
    settings.daemon_away = [](const std::string& why) {
        EXPECT_NE(why.find("larderd.sock"), std::string::npos) << why;
        ++away_calls;
    };
}

TEST_F(LoaderTest, OpeningALoaderWaitsForTheDaemon) {
    make_raw(40);
    auto settings = options();
    start_while_opening(settings, *daemon);
    Loader loader = open(settings);
    EXPECT_FALSE(take(loader));
    expect_each_sample_once();
    EXPECT_EQ(away_calls, 1);
    EXPECT_EQ(loader.statistics().reconnects, 0u);
}

TEST_F(LoaderTest, OpeningADatasetWaitsForTheDaemon) {
    make_raw(40);
    ConnectOptions settings = options();
    start_while_opening(settings, *daemon);
    auto dataset = Dataset::open(settings);
    ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
    EXPECT_EQ(dataset->sample_count(), 40u);
    EXPECT_EQ(away_calls, 1);
}

TEST_F(LoaderTest, WaitingForTheDaemonAtOpenCanBeInterrupted) {
    make_raw(40);
    daemon->stop();
    auto settings = options();
    settings.interrupted = [] { return true; };
    EXPECT_EQ(Loader::open(settings).error().code, ErrorCode::cancelled);
}

TEST_F(LoaderTest, DroppedSegmentIsUnmappedOnceNoBatchUsesIt) {
    make_raw(200);
    daemon->behaviour.memory_every = 1;
    Loader loader = open(options());
    std::optional<Batch> held = std::move(*loader.next());
    daemon->drop_segments = true;
    EXPECT_TRUE(take(loader, 3));
    while (daemon->drop_segments) take(loader, 1);
    EXPECT_EQ(daemon->segments_unmapped, 0u) << "a batch still lies in it";
    count(*held);
    held.reset();
    seen.clear();
    for (int epochs = 0; daemon->segments_unmapped == 0 && epochs < 1000; ++epochs) take(loader);
    EXPECT_EQ(daemon->segments_unmapped, 1u);
    seen.clear();
    ASSERT_TRUE(loader.start_epoch(1).has_value());
    EXPECT_FALSE(take(loader));
    expect_each_sample_once();
    EXPECT_EQ(loader.statistics().reconnects, 0u);
}

TEST_F(LoaderTest, ForkedChildOpensItsOwnSession) {
    make_raw(80);
    Loader loader = open(options());
    EXPECT_TRUE(take(loader, 2));
    std::optional<Batch> held = std::move(*loader.next());
    const pid_t child = ::fork();
    if (child == 0) {
        // The child must not use gtest: its exit code is the result.
        std::uint64_t samples = held->size();
        held.reset();
        auto batch = loader.next();
        for (; batch && *batch; batch = loader.next()) samples += (*batch)->size();
        ::_exit(batch && samples == 48 && loader.statistics().reconnects == 0 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    count(*held);
    held.reset();
    EXPECT_FALSE(take(loader));
    expect_each_sample_once();
    EXPECT_EQ(daemon->sessions_opened, 2u);
}

TEST_F(LoaderTest, WaitingForABatchCanBeInterrupted) {
    make_raw(40);
    auto settings = options();
    settings.interrupted = [] { return true; };
    Loader loader = open(settings);
    daemon->behaviour.silent = true;
    auto batch = loader.next();
    ASSERT_FALSE(batch.has_value());
    EXPECT_EQ(batch.error().code, ErrorCode::cancelled);
    daemon->behaviour.silent = false;
    EXPECT_GT(loader.statistics().stall_ns, 0);
    for (;;) {
        batch = loader.next();
        if (!batch) continue;
        if (!*batch) break;
        count(**batch);
    }
    expect_each_sample_once();
}

TEST_F(LoaderTest, SlowDaemonStallsButDeliversEverySample) {
    make_raw(40);
    daemon->behaviour.delay_us = 3000;
    auto settings = options();
    settings.batch_size = 2;
    Loader loader = open(settings);
    EXPECT_FALSE(take(loader));
    expect_each_sample_once();
    EXPECT_GT(loader.statistics().stall_ns, 0);
}

TEST_F(LoaderTest, MapStyleFetchSurvivesADaemonRestart) {
    make_raw(80);
    auto dataset = Dataset::open(options());
    ASSERT_TRUE(dataset.has_value());
    const std::vector<std::uint64_t> wanted{1, 50, 7};
    auto before = dataset->fetch(wanted);
    ASSERT_TRUE(before.has_value());
    daemon->stop();
    daemon->start();
    const std::vector<std::uint64_t> others{7, 2, 51};
    auto after = dataset->fetch(others);
    ASSERT_TRUE(after.has_value()) << after.error().message;
    count(*before);
    count(*after);
    EXPECT_EQ(dataset->statistics().reconnects, 1u);
}

}  // namespace
}  // namespace larder::test
