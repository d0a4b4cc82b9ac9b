#pragma once

// The number of random cases per property. Under a sanitizer each case takes ten to thirty times as long, and the
// first hundreds or thousands show what a sanitizer can find. The build without sanitizers runs the full number.

#include <cstdint>

namespace larder::test {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

constexpr std::uint64_t property_cases(std::uint64_t full, std::uint64_t sanitized_divisor = 10) {
    return kSanitized ? full / sanitized_divisor : full;
}

}  // namespace larder::test
