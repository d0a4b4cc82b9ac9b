#include "allocator/rate_limits.h"

#include <gtest/gtest.h>

#include <cmath>

namespace larder::allocator {
namespace {

// Two networks, each filled by the floor of a lease but for the last bit. A job without a floor rises beside it. Its
// rises are too small for the sum to show them.
TEST(RateLimits, BoundsFullOfFloorsAreSettledAtOnce) {
    constexpr double kCapacity = 5e7;
    const double floor = std::nextafter(kCapacity, 0);
    RateLimits limits(4);
    for (std::uint32_t network = 0; network < 2; ++network) {
        limits.add(kCapacity);
        limits.use(network, 2 * network, 1, floor);
        limits.use(network, 2 * network + 1, 1);
    }
    limits.finish();
    const std::vector<double> low(4);
    const std::vector<double> high{2e8, 1e3, 2e8, 1.1e3};
    std::size_t turns = 0;
    const std::vector<double> rates = limits.fill(low, high, high, &turns);
    EXPECT_LE(turns, 4U);
    EXPECT_TRUE(limits.fits(rates));
    for (const std::size_t with_floor : {0, 2}) EXPECT_NEAR(rates[with_floor], kCapacity, 1);
    for (const std::size_t without : {1, 3}) EXPECT_NEAR(rates[without], 0, 1);
}

// A bound whose users are stopped by others has room again, and its other users rise on.
TEST(RateLimits, BoundRisesOnceOthersSettleItsUsers) {
    RateLimits limits(3);
    limits.add(10);
    limits.add(2);
    limits.use(0, 0, 1);
    limits.use(0, 1, 1);
    limits.use(1, 1, 1);
    limits.use(1, 2, 1);
    limits.finish();
    const std::vector<double> rates =
        limits.fill(std::vector<double>(3), std::vector<double>(3, 1.0), std::vector<double>(3, 100.0));
    EXPECT_NEAR(rates[0], 9, 1e-9);
    EXPECT_NEAR(rates[1], 1, 1e-9);
    EXPECT_NEAR(rates[2], 1, 1e-9);
}

}  // namespace
}  // namespace larder::allocator
