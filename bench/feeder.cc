#include "bench/feeder.h"

#include <cstring>

namespace larder::bench {

std::uint64_t sum_bytes(const std::byte* data, std::size_t count) {
    std::uint64_t sum = 0;
    std::size_t i = 0;
    for (; i + sizeof(std::uint64_t) <= count; i += sizeof(std::uint64_t)) {
        std::uint64_t word;
        std::memcpy(&word, data + i, sizeof word);
        sum += word;
    }
    for (; i < count; ++i) sum += static_cast<std::uint64_t>(data[i]);
    return sum;
}

}  // namespace larder::bench
