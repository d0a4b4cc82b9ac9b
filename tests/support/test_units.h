// Units for tests.
#pragma once

#include <cstdint>

namespace larder::test {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kGB = 1'000'000'000;
inline constexpr std::int64_t kSecond_ns = 1'000'000'000;

}  // namespace larder::test
