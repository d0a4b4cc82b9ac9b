#include "loader/delivered_samples.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "loader/bit_coder.h"

namespace larder::detail {
namespace {

bool bit_of(const std::vector<std::uint64_t>& words, std::uint64_t i) {
    return ((words[i / 64] >> (i % 64)) & 1) != 0;
}

void set_bit_of(std::vector<std::uint64_t>& words, std::uint64_t i) {
    words[i / 64] |= std::uint64_t{1} << (i % 64);
}

void put_u32(std::vector<std::byte>& bytes, std::uint64_t value) {
    for (unsigned i = 0; i < 4; ++i) bytes.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void put_coded(std::vector<std::byte>& bytes, std::span<const std::byte> coded) {
    put_u32(bytes, coded.size());
    bytes.insert(bytes.end(), coded.begin(), coded.end());
}

class NumberReader {
public:
    explicit NumberReader(std::span<const std::byte> bytes) : rest_(bytes) {}
    bool ok() const { return ok_; }
    bool at_end() const { return rest_.empty(); }
    std::size_t left() const { return rest_.size(); }
    std::uint32_t get() {
        std::uint32_t value = 0;
        const auto bytes = take(sizeof value);
        if (ok_) std::memcpy(&value, bytes.data(), sizeof value);
        return value;
    }
    std::span<const std::byte> take(std::size_t count) {
        ok_ = ok_ && count <= rest_.size();
        if (!ok_) return {};
        const auto taken = rest_.first(count);
        rest_ = rest_.subspan(count);
        return taken;
    }

private:
    std::span<const std::byte> rest_;
    bool ok_ = true;
};

// Bounds what bytes that are no set can make `decode` allocate.
constexpr std::uint64_t kBitsMax = std::uint64_t{1} << 30;

}  // namespace

bool DeliveredSamples::has(std::uint32_t block, std::uint64_t sample) const {
    if (is_whole(block)) return true;
    const auto part = parts_.find(block);
    return part != parts_.end() && sample < part->second.samples && bit_of(part->second.bits, sample);
}

std::uint64_t DeliveredSamples::count(std::uint32_t block, std::uint64_t samples) const {
    if (is_whole(block)) return samples;
    const auto part = parts_.find(block);
    return part == parts_.end() ? 0 : part->second.delivered;
}

void DeliveredSamples::add_block(std::uint32_t block) {
    LARDER_ASSERT(block < block_count_);
    parts_.erase(block);
    set_bit_of(whole_, block);
}

void DeliveredSamples::add(std::uint32_t block, std::uint64_t sample, std::uint64_t samples) {
    LARDER_ASSERT(block < block_count_ && sample < samples);
    if (has(block, sample)) return;
    Part& part = parts_[block];
    part.samples = static_cast<std::uint32_t>(samples);
    part.bits.resize((samples + 63) / 64);
    set_bit_of(part.bits, sample);
    if (++part.delivered == samples) add_block(block);
}

bool DeliveredSamples::fits(const std::function<std::uint64_t(std::uint32_t block)>& samples_of) const {
    return std::ranges::all_of(parts_, [&](const auto& part) { return part.second.samples == samples_of(part.first); });
}

bool DeliveredSamples::is_like(const DeliveredSamples& other) const {
    return block_count_ == other.block_count_ && std::ranges::all_of(parts_, [&](const auto& part) {
               const auto same = other.parts_.find(part.first);
               return same == other.parts_.end() || same->second.samples == part.second.samples;
           });
}

void DeliveredSamples::merge(const DeliveredSamples& other) {
    LARDER_ASSERT(is_like(other));
    for (std::size_t i = 0; i < whole_.size(); ++i) whole_[i] |= other.whole_[i];
    std::erase_if(parts_, [this](const auto& part) { return is_whole(part.first); });
    for (const auto& [block, part] : other.parts_) {
        for (std::uint64_t sample = 0; sample < part.samples; ++sample) {
            if (bit_of(part.bits, sample)) add(block, sample, part.samples);
        }
    }
}

std::vector<std::byte> DeliveredSamples::encode() const {
    std::vector<std::byte> bytes;
    std::uint64_t whole_count = 0;
    for (const std::uint64_t word : whole_) whole_count += static_cast<unsigned>(std::popcount(word));
    put_u32(bytes, block_count_);
    put_u32(bytes, whole_count);
    put_u32(bytes, parts_.size());
    put_coded(bytes, code_bits(whole_, block_count_, whole_count));
    std::uint64_t samples = 0;
    std::uint64_t delivered = 0;
    for (const auto& [block, part] : parts_) put_u32(bytes, block);
    for (const auto& [block, part] : parts_) {
        put_u32(bytes, part.samples);
        samples += part.samples;
        delivered += part.delivered;
    }
    std::vector<std::uint64_t> bits((samples + 63) / 64);
    std::uint64_t at = 0;
    for (const auto& [block, part] : parts_) {
        for (std::uint64_t sample = 0; sample < part.samples; ++sample, ++at) {
            if (bit_of(part.bits, sample)) set_bit_of(bits, at);
        }
    }
    put_u32(bytes, delivered);
    put_coded(bytes, code_bits(bits, samples, delivered));
    return bytes;
}

std::optional<DeliveredSamples> DeliveredSamples::decode(std::span<const std::byte> bytes) {
    NumberReader reader(bytes);
    const std::uint32_t block_count = reader.get();
    const std::uint32_t whole_count = reader.get();
    const std::uint32_t part_count = reader.get();
    const auto whole_coded = reader.take(reader.get());
    if (!reader.ok() || block_count > kBitsMax || part_count > reader.left() / 8) return std::nullopt;
    DeliveredSamples set(block_count);
    auto whole = decode_bits(whole_coded, block_count, whole_count);
    if (!whole) return std::nullopt;
    set.whole_ = std::move(*whole);
    std::vector<std::uint32_t> blocks(part_count);
    for (std::uint32_t& block : blocks) block = reader.get();
    std::vector<std::uint32_t> sizes(part_count);
    std::uint64_t samples = 0;
    for (std::uint32_t& size : sizes) samples += size = reader.get();
    const std::uint32_t delivered = reader.get();
    const auto parts_coded = reader.take(reader.get());
    if (!reader.ok() || !reader.at_end() || samples > kBitsMax) return std::nullopt;
    const auto bits = decode_bits(parts_coded, samples, delivered);
    if (!bits) return std::nullopt;
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (blocks[i] >= block_count || set.is_whole(blocks[i]) || (i > 0 && blocks[i] <= blocks[i - 1])) {
            return std::nullopt;
        }
        for (std::uint64_t sample = 0; sample < sizes[i]; ++sample, ++at) {
            if (bit_of(*bits, at)) set.add(blocks[i], sample, sizes[i]);
        }
    }
    return set;
}

}  // namespace larder::detail
