#include "bench/fair_limiter.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace larder::test {
namespace {

using bench::FairOrder;

// Serves what waits, one request after another; `turns` has the reader of each. Returns the readers in order.
std::vector<std::size_t> serve_all(FairOrder& order, std::map<FairOrder::Turn, std::size_t> turns) {
    std::vector<std::size_t> readers;
    while (!turns.empty()) {
        bool served = false;
        for (const auto& [turn, reader] : turns) {
            if (!order.is_next(turn)) continue;
            order.serve(turn);
            readers.push_back(reader);
            turns.erase(turn);
            served = true;
            break;
        }
        if (!served) break;
    }
    return readers;
}

TEST(FairOrder, ReadersWithManyRequestsTakeTurns) {
    FairOrder order(2);
    std::map<FairOrder::Turn, std::size_t> turns;
    for (const std::size_t reader : {0u, 0u, 0u, 1u, 1u, 1u}) turns.emplace(order.add(reader, 100), reader);
    EXPECT_EQ(serve_all(order, turns), (std::vector<std::size_t>{0, 1, 0, 1, 0, 1}));
}

TEST(FairOrder, ReaderThatWasIdleHasSavedNothing) {
    FairOrder order(2);
    std::map<FairOrder::Turn, std::size_t> turns;
    for (int i = 0; i < 3; ++i) turns.emplace(order.add(0, 100), 0);
    EXPECT_EQ(serve_all(order, turns).size(), 3u);
    turns.clear();
    // Reader 1 comes only now. It does not get the three requests that it did not make before.
    for (const std::size_t reader : {0u, 0u, 1u, 1u, 1u}) turns.emplace(order.add(reader, 100), reader);
    EXPECT_EQ(serve_all(order, turns), (std::vector<std::size_t>{1, 0, 1, 0, 1}));
}

TEST(FairOrder, LargerRequestsTakeFewerTurns) {
    FairOrder order(2);
    std::map<FairOrder::Turn, std::size_t> turns;
    for (int i = 0; i < 2; ++i) turns.emplace(order.add(0, 200), 0);
    for (int i = 0; i < 4; ++i) turns.emplace(order.add(1, 100), 1);
    EXPECT_EQ(serve_all(order, turns), (std::vector<std::size_t>{0, 1, 1, 0, 1, 1}));
}

}  // namespace
}  // namespace larder::test
