// The work of a job on several nodes, counted by a simulation in which the ranks' own time is known.

#include "allocator/job_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace larder::allocator {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kSecond = 1'000 * kMs;
constexpr std::int64_t kBegin = 1'000 * kSecond;
constexpr std::uint64_t kBatchBytes = 1'000'000;
constexpr std::int64_t kCompute = 50 * kMs;

// A node with one rank, as its daemon reports it.
class NodeInStep {
public:
    NodeInStep(std::string named, std::int64_t clock_ahead_ns)
        : name(std::move(named)), ahead_ns_(clock_ahead_ns), began_ns_(kBegin), until_ns_(kBegin) {}

    void take(std::int64_t asked_ns, std::int64_t took_ns) {
        if (took_ns > asked_ns) waits_.push_back({asked_ns, took_ns});
        if (taken_ns_ > 0) shortest_ns_ = std::min(shortest_ns_, asked_ns - taken_ns_);
        taken_ns_ = took_ns;
        taken_at_ns_.push_back(took_ns);
    }
    // The waits that a report of `now_ns` has, up to then.
    WaitsReport waits(std::int64_t now_ns) const {
        WaitsReport report{.since_us = on_clock_us(std::max(began_ns_, now_ns - 4 * kSecond)),
                           .until_us = on_clock_us(now_ns),
                           .counted_us = on_clock_us(until_ns_),
                           .batches = batches(),
                           .shortest_us = taken_ns_ == 0 ? 0 : static_cast<std::uint64_t>(shortest_ns_ / 1000)};
        std::uint64_t at_us = report.since_us;
        for (const auto& [begin_ns, end_ns] : waits_) {
            const std::uint64_t begin_us = on_clock_us(begin_ns);
            const std::uint64_t end_us = std::min(on_clock_us(end_ns), report.until_us);
            if (begin_us < at_us || begin_us >= end_us) continue;
            report.lengths_us.insert(report.lengths_us.end(), {begin_us - at_us, end_us - begin_us});
            at_us = end_us;
        }
        return report;
    }
    void begin(JobWork& work, std::int64_t now_ns) {
        clock.add(on_clock_us(now_ns), now_ns);
        const WaitsReport report = waits(now_ns);
        work.begin(name, {.report = &report, .clock = &clock}, now_ns);
    }
    // The report of `now_ns`, which takes so long. It counts the work up to a while before.
    void report(JobWork& work, std::int64_t now_ns, std::int64_t delay_ns = 0) {
        const std::int64_t counted_ns = std::max(until_ns_, now_ns - lag_ns);
        std::int64_t waited_ns = 0;
        for (const auto& [begin_ns, end_ns] : waits_)
            waited_ns += std::max<std::int64_t>(0, std::min(end_ns, counted_ns) - std::max(begin_ns, until_ns_));
        const double busy_s = static_cast<double>(counted_ns - until_ns_ - waited_ns) * 1e-9;
        own_busy_s += busy_s;
        until_ns_ = counted_ns;
        clock.add(on_clock_us(now_ns), now_ns + delay_ns);
        const WaitsReport report = waits(now_ns);
        const std::uint64_t new_batches = batches() - std::exchange(reported_, batches());
        work.add(name, {.bytes = new_batches * kBatchBytes, .busy_s = busy_s, .ranks = 1},
                 {.report = says_waits ? &report : nullptr, .clock = &clock}, now_ns + delay_ns);
    }

    std::string name;
    NodeClock clock;
    bool says_waits = true;
    std::int64_t lag_ns = 0;  // of the work that reports count
    double own_busy_s = 0;

private:
    std::uint64_t on_clock_us(std::int64_t ns) const { return static_cast<std::uint64_t>(ns + ahead_ns_) / 1000; }

    std::uint64_t batches() const {
        return static_cast<std::uint64_t>(std::ranges::upper_bound(taken_at_ns_, until_ns_) - taken_at_ns_.begin());
    }

    std::int64_t ahead_ns_;
    std::int64_t began_ns_;
    std::int64_t until_ns_;  // its work is counted up to then
    std::int64_t taken_ns_ = 0;
    std::int64_t shortest_ns_ = std::numeric_limits<std::int64_t>::max();
    std::vector<std::int64_t> taken_at_ns_;
    std::uint64_t reported_ = 0;  // batches
    std::vector<std::pair<std::int64_t, std::int64_t>> waits_;
};

// The clocks of the nodes are apart by hours.
struct JobInStep {
    explicit JobInStep(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            nodes.emplace_back(std::string(1, static_cast<char>('a' + i)),
                               static_cast<std::int64_t>(i) * 10'000 * kSecond);
            nodes.back().begin(work, kBegin);
        }
    }
    // All ranks ask at once, each gets its batch after its own wait, and computes. All are done when the last one is.
    // Some batches are short, so that the shortest one says little of the others.
    void step(const std::vector<std::int64_t>& waits_ns) {
        for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i].take(now_ns, now_ns + waits_ns[i]);
        now_ns += std::ranges::max(waits_ns) + (steps % 2 == 0 ? kCompute / 5 : kCompute * 9 / 5);
        ++steps;
    }
    void take() {
        while (const auto whole = work.take(now_ns)) {
            bytes += whole->bytes;
            busy_s += whole->busy_s;
            ranks = whole->ranks;
        }
    }
    double batch_s() const { return busy_s / (static_cast<double>(bytes) / kBatchBytes); }

    JobWork work;
    std::deque<NodeInStep> nodes;
    std::int64_t now_ns = kBegin;
    int steps = 0;
    std::uint64_t bytes = 0;
    double busy_s = 0;
    std::uint32_t ranks = 0;
};

// In each step another node waits for long. Nodes report at times of their own.
void run_steps(JobInStep& job, int count) {
    std::mt19937 draw(7);
    for (int step = 0; step < count; ++step) {
        std::vector<std::int64_t> waits_ns(job.nodes.size());
        for (std::int64_t& wait_ns : waits_ns) wait_ns = static_cast<std::int64_t>(draw() % 20) * kMs;
        waits_ns[draw() % waits_ns.size()] = static_cast<std::int64_t>(20 + draw() % 100) * kMs;
        job.step(waits_ns);
        for (std::size_t i = 0; i < job.nodes.size(); ++i) {
            if (step % 8 == static_cast<int>(3 * i % 8)) job.nodes[i].report(job.work, job.now_ns);
        }
        job.take();
    }
}

TEST(JobWork, NodesInStepAreBusyWhileNoneOfThemWaits) {
    JobInStep job(3);
    run_steps(job, 800);
    EXPECT_NEAR(job.batch_s(), 0.05, 0.001);
    EXPECT_GT(job.bytes, std::uint64_t{3} * 780 * kBatchBytes) << "all work but the last is counted";
    EXPECT_EQ(job.ranks, 3u);
    EXPECT_GT(job.nodes[0].own_busy_s, 800 * 0.065) << "else the ranks hardly waited for each other";
}

// A rank that waits for others in its own process says nothing of its work.
TEST(JobWork, WorkThatIsCountedLateIsComparedWithTheWaitsOfItsTime) {
    JobInStep job(2);
    std::mt19937 draw(7);
    for (int step = 0; step < 800; ++step) {
        std::vector<std::int64_t> waits_ns(2, 5 * kMs);
        waits_ns[step / 16 % 2] = 100 * kMs;
        job.step(waits_ns);
        for (std::size_t i = 0; i < 2; ++i) {
            if (step % 8 != static_cast<int>(4 * i)) continue;
            job.nodes[i].lag_ns = draw() % 2 == 0 ? 0 : static_cast<std::int64_t>(draw() % 5000) * kMs;
            job.nodes[i].report(job.work, job.now_ns);
        }
        job.take();
    }
    for (NodeInStep& node : job.nodes) {
        node.lag_ns = 0;
        node.report(job.work, job.now_ns);
        job.take();
    }
    EXPECT_NEAR(job.batch_s(), 0.05, 0.0015);
}

TEST(JobWork, NodesThatSayNoWaitsAreAsBusyAsTheySay) {
    JobInStep job(2);
    job.nodes[0].says_waits = false;
    run_steps(job, 800);
    EXPECT_GT(job.batch_s(), 0.065);
    EXPECT_EQ(job.ranks, 2u);
}

// Each rank computes as soon as it has its own data, so it does work while others wait.
TEST(JobWork, NodesThatDoNotWorkInStepAreAsBusyAsTheySay) {
    JobInStep job(3);
    std::mt19937 draw(7);
    std::vector<std::int64_t> next_ns(3, kBegin);
    for (int event = 0; event < 3000; ++event) {
        const auto i = static_cast<std::size_t>(std::ranges::min_element(next_ns) - next_ns.begin());
        job.now_ns = next_ns[i];
        const std::int64_t took_ns = next_ns[i] + static_cast<std::int64_t>(20 + draw() % 150) * kMs;
        job.nodes[i].take(next_ns[i], took_ns);
        next_ns[i] = took_ns + kCompute;
        if (event % 8 != 0) continue;
        for (NodeInStep& node : job.nodes) node.report(job.work, job.now_ns);
        job.take();
    }
    EXPECT_NEAR(job.batch_s(), 0.05, 0.002);
}

// The ranks wait for each other after eight batches only.
TEST(JobWork, NodesThatAccumulateGradientsAreAsBusyAsTheirBatchesNeed) {
    JobInStep job(2);
    std::mt19937 draw(7);
    for (int step = 0; step < 200; ++step) {
        std::vector<std::int64_t> at_ns(2, job.now_ns);
        for (int batch = 0; batch < 8; ++batch) {
            for (std::size_t i = 0; i < 2; ++i) {
                const std::int64_t took_ns = at_ns[i] + static_cast<std::int64_t>(draw() % 100) * kMs;
                job.nodes[i].take(at_ns[i], took_ns);
                at_ns[i] = took_ns + kCompute;
            }
        }
        job.now_ns = std::ranges::max(at_ns);
        for (NodeInStep& node : job.nodes) node.report(job.work, job.now_ns);
        job.take();
    }
    EXPECT_NEAR(job.batch_s(), 0.05, 0.002);
    EXPECT_GT(job.nodes[0].own_busy_s, 200 * 8 * 0.054) << "else no rank waited for others";
}

TEST(JobWork, LateReportTearsNoInterval) {
    JobInStep job(2);
    for (int second = 0; second < 40; ++second) {
        for (int step = 0; step < 10; ++step) job.step({50 * kMs, step % 2 == 0 ? 0 : 50 * kMs});
        const std::size_t late = second / 4 % 2;
        job.nodes[1 - late].report(job.work, job.now_ns);
        if (second % 4 != 2) job.nodes[late].report(job.work, job.now_ns);
        job.take();
        ASSERT_TRUE(job.ranks == 2 || job.ranks == 0) << second;
    }
    EXPECT_NEAR(job.batch_s(), 0.05, 0.001);
}

TEST(JobWork, SilentNodeIsLeftOutAfterSomeSeconds) {
    JobInStep job(2);
    run_steps(job, 100);
    EXPECT_EQ(job.ranks, 2u);
    job.bytes = 0;
    for (int second = 0; second < 20; ++second) {
        for (int step = 0; step < 10; ++step) job.step({50 * kMs, 0});
        job.nodes[0].report(job.work, job.now_ns);
        job.take();
    }
    EXPECT_EQ(job.ranks, 1u);
    EXPECT_GT(job.bytes, 150 * kBatchBytes);
    job.work.leave("a");
    job.now_ns += kSecond;
    job.nodes[1].report(job.work, job.now_ns);
    EXPECT_TRUE(job.work.take(job.now_ns));
}

TEST(JobWork, DelayOfSomeReportsMovesNoWait) {
    JobInStep job(2);
    std::mt19937 draw(7);
    for (int step = 0; step < 1000; ++step) {
        std::vector<std::int64_t> waits_ns(2, 40 * kMs);
        waits_ns[draw() % 2] = 60 * kMs;
        job.step(waits_ns);
        for (std::size_t i = 0; i < 2; ++i) {
            const std::int64_t delay_ns = draw() % 4 == 0 ? kMs / 2 : static_cast<std::int64_t>(draw() % 45) * kMs;
            if (step % 8 == static_cast<int>(4 * i)) job.nodes[i].report(job.work, job.now_ns, delay_ns);
        }
        job.take();
    }
    EXPECT_NEAR(job.batch_s(), 0.05, 0.0015);
}

TEST(JobWork, HostileNodeNeitherStopsTheOthersNorMakesThemBusierThanTheySay) {
    std::mt19937_64 draw(7);
    const auto any = [&] { return (draw() >> (draw() % 64)) & ((std::uint64_t{1} << 50) - 1); };
    JobInStep job(2);
    NodeClock clock;
    job.work.begin("liar", {.report = nullptr, .clock = &clock}, kBegin);
    for (int step = 0; step < 4000; ++step) {
        job.step({30 * kMs, step % 2 == 0 ? 0 : 30 * kMs});
        const auto now_us = static_cast<std::uint64_t>(job.now_ns / 1000);
        clock.add(draw() % 2 == 0 ? any() : now_us, job.now_ns);
        const std::uint64_t until_us = draw() % 2 == 0 ? any() : now_us;
        WaitsReport lies{.since_us = std::min(any(), until_us),
                         .until_us = until_us,
                         .batches = draw(),
                         .shortest_us = any(),
                         .lengths_us = std::vector<std::uint64_t>(draw() % 256 * 2)};
        for (std::uint64_t& length : lies.lengths_us) length = any();
        job.work.add("liar", {.bytes = 0, .busy_s = 0, .ranks = 1}, {.report = &lies, .clock = &clock}, job.now_ns);
        if (step % 8 != 0) continue;
        for (NodeInStep& node : job.nodes) node.report(job.work, job.now_ns);
        job.take();
        ASSERT_TRUE(std::isfinite(job.busy_s));
        ASSERT_GE(job.busy_s, 0);
        ASSERT_LE(job.busy_s, job.nodes[0].own_busy_s + job.nodes[1].own_busy_s);
    }
    EXPECT_GT(job.bytes, std::uint64_t{2} * 3500 * kBatchBytes);
}

}  // namespace
}  // namespace larder::allocator
