#pragma once

// A set of samples of an epoch, those that were delivered: whole blocks, and single samples of others. It is what a job
// that reads in shared order must keep, as its order is no function of a seed. A value, with a compact form in bytes:
//
//   u32 block_count | u32 whole_count | u32 part_count | u32 coded_bytes | coded bitmap of the whole blocks |
//   part_count x u32 block | part_count x u32 samples of the block | u32 delivered_count | u32 coded_bytes |
//   coded bitmap of the parts' delivered samples, one part after the other
//
// "Coded" is bit_coder.h's form. All numbers are little-endian; `delivered_count` counts the last bitmap's ones.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace larder::detail {

class DeliveredSamples {
public:
    DeliveredSamples() = default;
    explicit DeliveredSamples(std::uint32_t block_count)
        : block_count_(block_count), whole_((std::size_t{block_count} + 63) / 64) {}

    std::uint32_t block_count() const { return block_count_; }
    bool is_whole(std::uint32_t block) const { return ((whole_[block / 64] >> (block % 64)) & 1) != 0; }
    // True for the block's sample number `sample`, counted from its first one.
    bool has(std::uint32_t block, std::uint64_t sample) const;
    // The number of the block's samples that were delivered. The block has `samples` of them.
    std::uint64_t count(std::uint32_t block, std::uint64_t samples) const;

    void add_block(std::uint32_t block);
    // Adds a sample of a block of `samples` samples. The last one makes the block whole.
    void add(std::uint32_t block, std::uint64_t sample, std::uint64_t samples);
    // True if the blocks that were delivered in part have as many samples as the callback says. Bytes from elsewhere
    // may say anything.
    bool fits(const std::function<std::uint64_t(std::uint32_t block)>& samples_of) const;
    // True if both have as many blocks, and as many samples of each block that is in part in both.
    bool is_like(const DeliveredSamples& other) const;
    // Adds all of `other`, which must be like this one.
    void merge(const DeliveredSamples& other);

    std::vector<std::byte> encode() const;
    // nullopt: the bytes are no such set.
    static std::optional<DeliveredSamples> decode(std::span<const std::byte> bytes);

    friend bool operator==(const DeliveredSamples&, const DeliveredSamples&) = default;

private:
    struct Part {
        std::uint32_t samples = 0;  // of the block
        std::uint32_t delivered = 0;
        std::vector<std::uint64_t> bits;  // a bit for each sample of the block

        friend bool operator==(const Part&, const Part&) = default;
    };

    std::uint32_t block_count_ = 0;
    std::vector<std::uint64_t> whole_;     // a bit for each block
    std::map<std::uint32_t, Part> parts_;  // of blocks that are not whole
};

}  // namespace larder::detail
