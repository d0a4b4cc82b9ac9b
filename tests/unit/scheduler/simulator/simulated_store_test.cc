#include "scheduler/simulator/simulated_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "scheduler/simulator/random.h"

namespace larder::scheduler {
namespace {

constexpr double kStored = 1000;  // bytes of the dataset

// A store, and the jobs that read its dataset.
struct Reading {
    Store store{.size_bytes = kStored};
    std::vector<std::unique_ptr<SimulatedReader>> readers;

    explicit Reading(double quota, std::size_t count = 1) {
        store.quota_bytes = quota;
        for (std::size_t i = 0; i < count; ++i) {
            SimulatedReader& reader = *readers.emplace_back(std::make_unique<SimulatedReader>());
            reader.remaining_bytes = 1e9;
            store.readers.push_back(&reader);
            begin_epoch(store, reader);
        }
    }
    void read(std::vector<double> bytes) {
        for (const auto& reader : readers) {
            reader->hit_ratio = reader->unread_bytes > 0 ? reader->unread_cached_bytes / reader->unread_bytes : 0;
        }
        larder::scheduler::advance(store, bytes);
    }
};

TEST(Store, FillsUpToQuotaAndHelpsFromNextEpoch) {
    Reading reading(400);
    reading.read({300});
    EXPECT_DOUBLE_EQ(reading.store.cached_bytes, 300);
    EXPECT_DOUBLE_EQ(reading.readers[0]->unread_cached_bytes, 0);
    reading.read({700});
    EXPECT_DOUBLE_EQ(reading.store.cached_bytes, 400);
    begin_epoch(reading.store, *reading.readers[0]);
    EXPECT_DOUBLE_EQ(reading.readers[0]->unread_cached_bytes / reading.readers[0]->unread_bytes, 0.4);
    reading.read({500});
    EXPECT_DOUBLE_EQ(reading.readers[0]->unread_cached_bytes / reading.readers[0]->unread_bytes, 0.4);
}

TEST(Store, LargerQuotaHelpsSingleJobOnlyFromNextEpoch) {
    Reading reading(200);
    reading.read({1000});
    begin_epoch(reading.store, *reading.readers[0]);
    reading.store.quota_bytes = 1000;
    reading.read({500});
    EXPECT_DOUBLE_EQ(reading.readers[0]->unread_cached_bytes / reading.readers[0]->unread_bytes, 0.2);
    reading.read({500});
    begin_epoch(reading.store, *reading.readers[0]);
    EXPECT_DOUBLE_EQ(reading.store.cached_bytes, 1000);
}

TEST(Store, SmallerQuotaDropsReadBytesFirst) {
    Reading reading(1000);
    reading.read({1000});
    begin_epoch(reading.store, *reading.readers[0]);
    reading.read({600});
    reading.store.quota_bytes = 400;  // drops the 600 bytes that were read
    cut_to_quota(reading.store);
    EXPECT_DOUBLE_EQ(reading.store.cached_bytes, 400);
    EXPECT_NEAR(reading.readers[0]->unread_cached_bytes, 400, 1e-6);
    reading.store.quota_bytes = 100;
    cut_to_quota(reading.store);
    EXPECT_NEAR(reading.readers[0]->unread_cached_bytes, 100, 1e-6);
}

// Simulates single blocks: every job reads them in its own order, and a miss is admitted while there is room.
class Blocks {
public:
    Blocks(std::size_t blocks, std::size_t quota, std::size_t jobs, std::uint64_t seed)
        : quota_(quota), cached_(blocks), random_(seed), jobs_(jobs) {
        for (Job& job : jobs_) begin(job);
    }
    // Reads the job's next block. Returns true if it was a hit.
    bool read(std::size_t index) {
        Job& job = jobs_[index];
        const std::size_t block = job.order[job.next++];
        const bool hit = cached_[block];
        if (!hit && used_ < quota_) {
            cached_[block] = true;
            ++used_;
        }
        if (job.next == job.order.size()) begin(job);
        return hit;
    }

private:
    struct Job {
        std::vector<std::size_t> order;
        std::size_t next = 0;
    };
    void begin(Job& job) {
        job.order.resize(cached_.size());
        std::iota(job.order.begin(), job.order.end(), 0);
        for (std::size_t i = job.order.size(); i > 1; --i) std::swap(job.order[i - 1], job.order[random_.below(i)]);
        job.next = 0;
    }

    std::size_t quota_;
    std::size_t used_ = 0;
    std::vector<bool> cached_;
    Random random_;
    std::vector<Job> jobs_;
};

// Several jobs read a dataset at different rates while its cache fills. Compares the hits of the fluid model with those
// of blocks over each tenth of the first job's epoch.
TEST(Store, MatchesSimulationOfBlocks) {
    constexpr std::size_t kBlocks = 200000;
    for (const double quota : {0.3, 0.8, 1.0}) {
        const std::vector<std::size_t> rates{4, 2, 1};
        Blocks blocks(kBlocks, static_cast<std::size_t>(quota * kBlocks), rates.size(), 5);
        Reading fluid(quota * kStored, rates.size());
        for (int tenth = 0; tenth < 20; ++tenth) {
            std::vector<double> hits(rates.size());
            std::vector<double> expected(rates.size());
            constexpr std::size_t kRounds = kBlocks / 40;  // the first job reads a tenth of the dataset
            for (std::size_t round = 0; round < kRounds; ++round) {
                for (std::size_t j = 0; j < rates.size(); ++j) {
                    for (std::size_t i = 0; i < rates[j]; ++i) hits[j] += blocks.read(j);
                }
            }
            constexpr int kSteps = 20;
            for (int step = 0; step < kSteps; ++step) {
                std::vector<double> bytes;
                for (std::size_t j = 0; j < rates.size(); ++j) {
                    SimulatedReader& reader = *fluid.readers[j];
                    if (reader.unread_bytes < 1e-6) begin_epoch(fluid.store, reader);
                    bytes.push_back(static_cast<double>(rates[j]) * kStored / 40 / kSteps);
                    expected[j] += bytes[j] * reader.unread_cached_bytes / reader.unread_bytes;
                }
                fluid.read(bytes);
            }
            for (std::size_t j = 0; j < rates.size(); ++j) {
                const double read = static_cast<double>(rates[j]) * kRounds;
                EXPECT_NEAR(hits[j] / read, expected[j] / (static_cast<double>(rates[j]) * kStored / 40), 0.03)
                    << "quota " << quota << ", tenth " << tenth << ", job " << j;
            }
        }
    }
}

}  // namespace
}  // namespace larder::scheduler
