#include "cache/shard/step_time.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <vector>

namespace larder::cache {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kSecond = 1'000 * kMs;
constexpr std::int64_t kBegin = 100 * kSecond;

// A rank's side: the times that its loader would report.
class Rank {
public:
    explicit Rank(std::int64_t now_ns) : began_ns_(now_ns) { report(now_ns); }

    // Reports at the time at which the loop asks for a batch, then waits.
    void ask(std::int64_t now_ns) {
        report(now_ns);
        since_ns_ = now_ns;
    }
    void take(std::int64_t now_ns) {
        takes_.add(since_ns_, now_ns);
        waited_ns_ += now_ns - since_ns_;
        since_ns_ = 0;
    }
    void report(std::int64_t now_ns) {
        const std::int64_t open_ns = since_ns_ == 0 ? 0 : now_ns - since_ns_;
        busy_ns_ = now_ns - began_ns_ - waited_ns_ - open_ns;
        reported_ns_ = now_ns;
        since_at_report_ns_ = since_ns_;
        stall_at_report_ns_ = waited_ns_;
        if (follows) seen_.copy_from(takes_, 0);
    }
    StepTime::Rank look() {
        return {.time = &time,
                .report = {.takes = follows ? &seen_ : &takes_,
                           .reported_ns = reported_ns_,
                           .busy_ns = busy_ns_,
                           .stall_ns = follows ? stall_at_report_ns_ : waited_ns_,
                           .waiting_since_ns = follows ? since_at_report_ns_ : since_ns_,
                           .knows_waits_at_report = follows}};
    }
    std::int64_t own_busy_ns() const { return busy_ns_; }
    std::int64_t since_ns() const { return since_ns_; }
    protocol::TakeLog& takes() { return takes_; }

    RankTime time;
    bool follows = false;

private:
    std::int64_t began_ns_;
    std::int64_t since_ns_ = 0;
    std::int64_t waited_ns_ = 0;
    std::int64_t busy_ns_ = 0;
    std::int64_t reported_ns_ = 0;
    std::int64_t since_at_report_ns_ = 0;
    std::int64_t stall_at_report_ns_ = 0;
    protocol::TakeLog takes_{};
    protocol::TakeLog seen_{};
};

class Job {
public:
    Rank& add() { return ranks.emplace_back(now_ns); }
    void look() {
        std::vector<StepTime::Rank> looked;
        looked.reserve(ranks.size());
        for (Rank& rank : ranks) looked.push_back(rank.look());
        time.look(looked, now_ns);
    }
    // All ranks ask at once, each gets its batch after its own wait, and computes. All are done when the last one is.
    void step(const std::vector<std::int64_t>& waits_ns, std::int64_t computes_ns) {
        std::int64_t longest_ns = 0;
        for (std::size_t i = 0; i < waits_ns.size(); ++i) {
            ranks[i].ask(now_ns);
            longest_ns = std::max(longest_ns, waits_ns[i]);
        }
        for (std::size_t i = 0; i < waits_ns.size(); ++i) ranks[i].take(now_ns + waits_ns[i]);
        now_ns += longest_ns + computes_ns;
    }

    std::int64_t now_ns = kBegin;
    std::deque<Rank> ranks;
    StepTime time;
};

double seconds(std::int64_t ns) {
    return static_cast<double>(ns) / 1e9;
}

// Four ranks compute for 50 ms in each step. In each, one of them waits for long.
void run_steps(Job& job, int count) {
    std::mt19937 draw(7);
    for (int step = 0; step < count; ++step) {
        std::vector<std::int64_t> waits_ns(job.ranks.size());
        for (std::int64_t& wait_ns : waits_ns) wait_ns = static_cast<std::int64_t>(draw() % 20) * kMs;
        waits_ns[draw() % waits_ns.size()] = static_cast<std::int64_t>(20 + draw() % 200) * kMs;
        job.step(waits_ns, 50 * kMs);
        if (step % 5 == 4) job.look();
    }
    for (Rank& rank : job.ranks) rank.report(job.now_ns);
    job.look();
}

TEST(StepTime, RanksAreBusyWhileNoneOfThemWaits) {
    for (const bool follows : {false, true}) {
        Job job;
        for (int i = 0; i < 4; ++i) job.add().follows = follows;
        run_steps(job, 200);
        for (const Rank& rank : job.ranks) {
            EXPECT_NEAR(seconds(rank.time.busy_ns()), 200 * 0.05, 0.06) << follows;
            EXPECT_GT(seconds(rank.own_busy_ns()), 200 * 0.07) << "else the ranks hardly waited for each other";
        }
    }
}

TEST(StepTime, RecentWaitsAreTheUnionOfTheLastSecondsAndCountTheBatches) {
    Job job;
    for (int i = 0; i < 2; ++i) job.add();
    EXPECT_EQ(job.time.recent().until_ns, 0) << "nothing is known yet";
    for (int step = 0; step < 100; ++step) {
        job.step({60 * kMs, step % 2 * 80 * kMs}, 20 * kMs);
        if (step % 7 == 0) job.look();
    }
    job.look();
    const RecentWaits recent = job.time.recent();
    EXPECT_EQ(recent.until_ns, job.now_ns);
    EXPECT_GE(recent.since_ns, job.now_ns - 4 * kSecond);
    EXPECT_LE(recent.since_ns, job.now_ns - 4 * kSecond + 100 * kMs);
    EXPECT_EQ(recent.shortest_ns, 20 * kMs);
    EXPECT_GE(recent.batches, 2u * 98) << "the first one of each rank has no time before it";
    std::int64_t waited_ns = 0;
    std::int64_t at_ns = 0;
    for (const Wait& wait : recent.waits) {
        ASSERT_LE(at_ns, wait.begin_ns);
        ASSERT_LT(wait.begin_ns, wait.end_ns);
        at_ns = wait.end_ns;
        waited_ns += wait.end_ns - std::max(wait.begin_ns, recent.since_ns);
    }
    EXPECT_LE(at_ns, recent.until_ns);
    EXPECT_NEAR(seconds(waited_ns) / seconds(recent.until_ns - recent.since_ns), 70.0 / 90, 0.02);
}

TEST(StepTime, OnlySoManyRecentWaitsAreKnown) {
    Job job;
    job.add();
    for (int step = 0; step < 2000; ++step) {
        job.step({5 * kMs}, 5 * kMs);
        if (step % 50 == 49) job.look();
    }
    const RecentWaits recent = job.time.recent();
    EXPECT_LE(recent.waits.size(), 256u);
    ASSERT_GE(recent.waits.size(), 250u);
    EXPECT_LE(recent.since_ns, recent.waits.front().begin_ns);
    EXPECT_GE(recent.since_ns, recent.waits.front().begin_ns - 10 * kMs) << "the wait before is not known any more";
}

TEST(StepTime, RankThatJoinsLateOrLeavesIsCountedWhileItIsThere) {
    Job job;
    for (int i = 0; i < 3; ++i) job.add();
    run_steps(job, 100);
    Rank& late = job.add();
    run_steps(job, 100);
    EXPECT_NEAR(seconds(late.time.busy_ns()), 100 * 0.05, 0.06);
    EXPECT_NEAR(seconds(job.ranks[0].time.busy_ns()), 200 * 0.05, 0.06);
    job.ranks.pop_front();
    run_steps(job, 100);
    EXPECT_NEAR(seconds(late.time.busy_ns()), 200 * 0.05, 0.06);
    EXPECT_NEAR(seconds(job.ranks[0].time.busy_ns()), 300 * 0.05, 0.06);
}

TEST(StepTime, SilentRankDelaysTheOthersForAFewSecondsOnly) {
    Job job;
    for (int i = 0; i < 2; ++i) job.add();
    Rank& silent = job.add();
    silent.follows = true;
    for (int step = 0; step < 400; ++step) {
        job.step({50 * kMs, 0}, 50 * kMs);
        if (step % 10 == 9) job.look();
    }
    EXPECT_NEAR(seconds(job.ranks[0].time.busy_ns()), 400 * 0.05, 4);
}

TEST(StepTime, ReadersThatDoNotWorkInStepAreAsBusyAsTheySay) {
    Job job;
    for (int i = 0; i < 4; ++i) job.add();
    std::mt19937 draw(7);
    std::vector<std::int64_t> next_ns(4, job.now_ns);
    for (int event = 0; event < 4000; ++event) {
        const auto i = static_cast<std::size_t>(std::ranges::min_element(next_ns) - next_ns.begin());
        Rank& rank = job.ranks[i];
        if (next_ns[i] - job.now_ns > kSecond) job.look();
        job.now_ns = next_ns[i];
        if (rank.since_ns() == 0) {
            rank.ask(job.now_ns);
            next_ns[i] += static_cast<std::int64_t>(20 + draw() % 150) * kMs;
        } else {
            rank.take(job.now_ns);
            next_ns[i] += 50 * kMs;
        }
        if (event % 20 == 19) job.look();
    }
    for (const Rank& rank : job.ranks) {
        EXPECT_NEAR(seconds(rank.time.busy_ns()) / seconds(rank.own_busy_ns()), 1, 0.02);
    }
}

// The ranks wait for each other after eight batches only. Until then each computes as soon as it has its own data.
TEST(StepTime, RanksThatAccumulateGradientsAreAsBusyAsTheirBatchesNeed) {
    Job job;
    for (int i = 0; i < 4; ++i) job.add();
    std::mt19937 draw(7);
    constexpr int kSteps = 100;
    constexpr int kBatches = 8;
    for (int step = 0; step < kSteps; ++step) {
        std::vector<std::int64_t> at_ns(4, job.now_ns);
        for (int event = 0; event < 4 * kBatches; ++event) {
            const auto i = static_cast<std::size_t>(event) % 4;
            job.ranks[i].ask(at_ns[i]);
            at_ns[i] += static_cast<std::int64_t>(draw() % 100) * kMs;
            job.ranks[i].take(at_ns[i]);
            at_ns[i] += 50 * kMs;
        }
        job.now_ns = std::ranges::max(at_ns);
        job.look();
    }
    for (Rank& rank : job.ranks) rank.report(job.now_ns);
    job.look();
    for (const Rank& rank : job.ranks) {
        EXPECT_NEAR(seconds(rank.time.busy_ns()) / (kSteps * kBatches * 0.05), 1, 0.03);
        EXPECT_GT(seconds(rank.own_busy_ns()) / (kSteps * kBatches * 0.05), 1.1) << "else no rank waited for others";
    }
}

TEST(StepTime, RankIsNoBusierThanItSaysIfItsLogIsTooShort) {
    Job job;
    for (int i = 0; i < 2; ++i) job.add();
    for (int step = 0; step < 2000; ++step) {
        job.step({15 * kMs, 5 * kMs}, 5 * kMs);
        if (step % 500 == 499) job.look();
    }
    for (const Rank& rank : job.ranks) {
        EXPECT_LE(rank.time.busy_ns(), rank.own_busy_ns());
        EXPECT_GE(rank.time.busy_ns(), std::int64_t{1990} * 5 * kMs);
    }
}

// The second rank's loop runs in another process and is silent for a while, so that the first one's time is counted
// late.
TEST(StepTime, WaitThatIsReportedLateIsNotBusy) {
    for (const bool joins_late : {false, true}) {
        Job job;
        Rank& late = job.add();
        late.follows = true;
        if (!joins_late) job.add();
        job.look();
        job.now_ns += kSecond;
        if (joins_late) job.add();
        job.look();
        Rank& rank = job.ranks[1];
        const std::int64_t began_ns = job.now_ns;
        job.ranks[0].ask(began_ns + kSecond / 2);
        job.ranks[0].take(began_ns + kSecond);
        rank.report(job.now_ns += kSecond);
        job.look();
        job.now_ns += kSecond;
        late.report(job.now_ns);
        job.look();
        rank.report(job.now_ns);
        job.look();
        EXPECT_EQ(rank.time.busy_ns(), rank.own_busy_ns() - kSecond / 2) << joins_late;
    }
}

TEST(StepTime, WaitBeforeARankJoinedTakesNothingFromIt) {
    Job job;
    Rank& late = job.add();
    late.follows = true;
    job.look();
    const std::int64_t began_ns = job.now_ns;
    late.ask(began_ns + kSecond / 5);
    late.take(began_ns + kSecond / 2);
    job.now_ns += kSecond;
    Rank& rank = job.add();
    job.look();
    job.now_ns += kSecond;
    late.report(job.now_ns);
    job.look();
    rank.report(job.now_ns += kSecond);
    late.report(job.now_ns);
    job.look();
    EXPECT_EQ(rank.time.busy_ns(), 2 * kSecond);
}

TEST(StepTime, ManyShortWaitsAreCounted) {
    Job job;
    for (int i = 0; i < 2; ++i) job.add();
    for (int step = 0; step < 20'000; ++step) {
        job.step({300'000, 100'000}, 700'000);
        if (step % 1000 == 999) job.look();
    }
    for (Rank& rank : job.ranks) rank.report(job.now_ns);
    job.look();
    for (const Rank& rank : job.ranks) EXPECT_NEAR(seconds(rank.time.busy_ns()), 20'000 * 0.0007, 0.3);
}

TEST(StepTime, NoReportAddsMoreThanTheTimeSinceTheLastLook) {
    std::mt19937_64 draw(7);
    const auto any = [&] { return static_cast<std::int64_t>(draw() >> (draw() % 64)); };
    const std::int64_t reported_max_ns = std::int64_t{30} * 24 * 3600 * kSecond;
    Job job;
    Rank& honest = job.add();
    protocol::TakeLog log{};
    RankTime liar;
    std::int64_t before_ns = 0;
    for (int i = 0; i < 3000; ++i) {
        for (auto& entry : log.entries) {
            entry.begin_ns = draw() % 2 == 0 ? any() : job.now_ns - any() % kSecond;
            entry.end_ns = draw() % 2 == 0 ? -any() : job.now_ns + any() % kSecond;
        }
        log.count = static_cast<std::uint64_t>(any());
        const StepTime::Rank lies{.time = &liar,
                                  .report = {.takes = &log,
                                             .reported_ns = draw() % 2 == 0 ? any() / 2 : job.now_ns,
                                             .busy_ns = any() % reported_max_ns,
                                             .stall_ns = any() % reported_max_ns,
                                             .waiting_since_ns = draw() % 2 == 0 ? any() : 0,
                                             .knows_waits_at_report = draw() % 2 == 0}};
        job.now_ns += 100 * kMs;
        honest.report(job.now_ns);
        const std::vector<StepTime::Rank> ranks = {lies, honest.look()};
        job.time.look(ranks, job.now_ns);
        ASSERT_GE(honest.time.busy_ns(), before_ns);
        ASSERT_LE(honest.time.busy_ns(), honest.own_busy_ns());
        ASSERT_GE(liar.busy_ns(), 0);
        before_ns = honest.time.busy_ns();
    }
}

TEST(StepTime, RankWithAnotherClockCountsAlone) {
    Job job;
    Rank& rank = job.add();
    Job elsewhere;
    elsewhere.now_ns = kBegin - 50 * kSecond;
    Rank& other = elsewhere.add();
    for (int step = 0; step < 100; ++step) {
        job.step({100 * kMs}, 50 * kMs);
        elsewhere.step({0}, 150 * kMs);
        const std::vector<StepTime::Rank> ranks = {rank.look(), other.look()};
        if (step % 10 == 9) job.time.look(ranks, job.now_ns);
    }
    EXPECT_NEAR(seconds(rank.time.busy_ns()), 100 * 0.05, 0.06);
    EXPECT_NEAR(seconds(other.time.busy_ns()), 100 * 0.15, 1.6) << "its first seconds may count too little";
}

}  // namespace
}  // namespace larder::cache
