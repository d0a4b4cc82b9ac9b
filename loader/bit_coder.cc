#include "loader/bit_coder.h"

#include <algorithm>

#include "base/assert.h"

namespace larder::detail {
namespace {

constexpr unsigned kProbabilityBits = 16;
constexpr std::uint32_t kRangeMin = std::uint32_t{1} << 24;

// The probability that a bit is 0, in units of 2^-16, and neither 0 nor 1: then any bits can be coded.
std::uint32_t zero_probability(std::uint64_t bit_count, std::uint64_t ones) {
    constexpr std::uint64_t kAll = std::uint64_t{1} << kProbabilityBits;
    if (bit_count == 0) return kAll / 2;
    const double share = static_cast<double>(bit_count - std::min(ones, bit_count)) / static_cast<double>(bit_count);
    return static_cast<std::uint32_t>(std::clamp<double>(share * static_cast<double>(kAll), 1, kAll - 1));
}

class Encoder {
public:
    void put(bool bit, std::uint32_t zero) {
        const std::uint32_t bound = (range_ >> kProbabilityBits) * zero;
        if (bit) {
            low_ += bound;
            range_ -= bound;
        } else {
            range_ = bound;
        }
        for (; range_ < kRangeMin; range_ <<= 8) shift();
    }
    std::vector<std::byte> finish() && {
        for (int i = 0; i < 5; ++i) shift();
        // Zeros at the end are what the decoder reads beyond the end.
        while (!bytes_.empty() && bytes_.back() == std::byte{0}) bytes_.pop_back();
        return std::move(bytes_);
    }

private:
    // Moves the highest byte of `low_` out. A later carry may still change it and the bytes of ones before it.
    void shift() {
        if (low_ < 0xff000000u || low_ > 0xffffffffu) {
            const auto carry = static_cast<unsigned>(low_ >> 32);
            if (any_) bytes_.push_back(static_cast<std::byte>(cached_ + carry));
            for (; ones_ > 0; --ones_) bytes_.push_back(static_cast<std::byte>(0xff + carry));
            cached_ = static_cast<unsigned>(low_ >> 24) & 0xff;
            any_ = true;
        } else {
            ++ones_;
        }
        low_ = (low_ & 0x00ffffffu) << 8;
    }

    std::uint64_t low_ = 0;
    std::uint32_t range_ = 0xffffffffu;
    unsigned cached_ = 0;
    bool any_ = false;
    std::uint64_t ones_ = 0;  // bytes 0xff that wait for a carry
    std::vector<std::byte> bytes_;
};

class Decoder {
public:
    explicit Decoder(std::span<const std::byte> bytes) : rest_(bytes) {
        for (int i = 0; i < 4; ++i) code_ = (code_ << 8) | next();
    }
    bool get(std::uint32_t zero) {
        const std::uint32_t bound = (range_ >> kProbabilityBits) * zero;
        const bool bit = code_ >= bound;
        if (bit) {
            code_ -= bound;
            range_ -= bound;
        } else {
            range_ = bound;
        }
        for (; range_ < kRangeMin; range_ <<= 8) code_ = (code_ << 8) | next();
        return bit;
    }

private:
    std::uint32_t next() {
        if (rest_.empty()) return 0;
        const auto byte = static_cast<std::uint32_t>(rest_.front());
        rest_ = rest_.subspan(1);
        return byte;
    }

    std::span<const std::byte> rest_;
    std::uint32_t range_ = 0xffffffffu;
    std::uint32_t code_ = 0;
};

}  // namespace

std::vector<std::byte> code_bits(std::span<const std::uint64_t> words, std::uint64_t bit_count, std::uint64_t ones) {
    LARDER_ASSERT(words.size() >= (bit_count + 63) / 64);
    if (ones == 0 || ones == bit_count) return {};
    const std::uint32_t zero = zero_probability(bit_count, ones);
    Encoder encoder;
    for (std::uint64_t i = 0; i < bit_count; ++i) encoder.put(((words[i / 64] >> (i % 64)) & 1) != 0, zero);
    return std::move(encoder).finish();
}

std::optional<std::vector<std::uint64_t>> decode_bits(std::span<const std::byte> coded, std::uint64_t bit_count,
                                                      std::uint64_t ones) {
    std::vector<std::uint64_t> words((bit_count + 63) / 64);
    if (ones > bit_count) return std::nullopt;
    const std::uint32_t zero = zero_probability(bit_count, ones);
    const bool is_same = ones == 0 || ones == bit_count;  // all bits are
    Decoder decoder(coded);
    std::uint64_t found = 0;
    for (std::uint64_t i = 0; i < bit_count; ++i) {
        const bool bit = is_same ? ones > 0 : decoder.get(zero);
        words[i / 64] |= std::uint64_t{bit} << (i % 64);
        found += bit;
    }
    if (found != ones) return std::nullopt;
    return words;
}

}  // namespace larder::detail
