#pragma once

// The numbers of Python's random.Random: the Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998), seeded by an
// integer. Traces that a Python program draws from a seed can so be drawn again.

#include <array>
#include <cstdint>

namespace larder::scheduler {

class PythonRandom {
public:
    explicit PythonRandom(std::uint64_t seed) {
        // init_by_array() of MT19937, with the seed's words of 32 bits as the key.
        const std::array<std::uint32_t, 2> key{static_cast<std::uint32_t>(seed),
                                               static_cast<std::uint32_t>(seed >> 32)};
        const std::uint32_t words = key[1] == 0 ? 1 : 2;
        state_[0] = 19650218;
        for (std::uint32_t i = 1; i < kSize; ++i) state_[i] = 1812433253U * mixed(i) + i;
        std::uint32_t i = 1;
        std::uint32_t j = 0;
        const auto next = [&] {
            if (++i < kSize) return;
            state_[0] = state_[kSize - 1];
            i = 1;
        };
        for (std::uint32_t step = 0; step < kSize; ++step) {
            state_[i] = (state_[i] ^ (mixed(i) * 1664525U)) + key[j] + j;
            j = (j + 1) % words;
            next();
        }
        for (std::uint32_t step = 1; step < kSize; ++step) {
            state_[i] = (state_[i] ^ (mixed(i) * 1566083941U)) - i;
            next();
        }
        state_[0] = 0x80000000U;
    }

    // Like Random.random(): in [0, 1).
    double uniform() {
        const std::uint32_t high = next() >> 5;
        const std::uint32_t low = next() >> 6;
        return (high * 67108864.0 + low) / 9007199254740992.0;
    }
    // Like the index that Random.choice() draws: in [0, below), for `below` from 1 to 2^31.
    std::uint32_t below(std::uint64_t below) {
        int bits = 0;
        while (below >> bits != 0) ++bits;
        for (;;) {
            const std::uint32_t drawn = next() >> (32 - bits);
            if (drawn < below) return drawn;
        }
    }

private:
    static constexpr std::uint32_t kSize = 624;
    static constexpr std::uint32_t kShift = 397;

    std::uint32_t mixed(std::uint32_t i) const { return state_[i - 1] ^ (state_[i - 1] >> 30); }

    std::uint32_t next() {
        if (at_ == kSize) {
            for (std::uint32_t i = 0; i < kSize; ++i) {
                const std::uint32_t bits = (state_[i] & 0x80000000U) | (state_[(i + 1) % kSize] & 0x7fffffffU);
                state_[i] = state_[(i + kShift) % kSize] ^ (bits >> 1) ^ (bits % 2 == 0 ? 0 : 0x9908b0dfU);
            }
            at_ = 0;
        }
        std::uint32_t drawn = state_[at_++];
        drawn ^= drawn >> 11;
        drawn ^= (drawn << 7) & 0x9d2c5680U;
        drawn ^= (drawn << 15) & 0xefc60000U;
        return drawn ^ (drawn >> 18);
    }

    std::array<std::uint32_t, kSize> state_{};
    std::uint32_t at_ = kSize;
};

}  // namespace larder::scheduler
