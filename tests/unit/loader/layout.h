#pragma once

// Sample layouts for tests of the epoch order, without a manifest.

#include <cstdint>
#include <random>
#include <vector>

#include "loader/epoch_order.h"

namespace larder::test {

class TestLayout final : public detail::SampleLayout {
public:
    static TestLayout uniform(std::uint32_t blocks, std::uint64_t samples_per_block) {
        return TestLayout(std::vector<std::uint64_t>(blocks, samples_per_block));
    }
    // Blocks of 0 to `samples_max` samples. If `samples_max` is 0, each block has one sample.
    static TestLayout random(std::mt19937_64& random, std::uint64_t blocks, std::uint64_t samples_max) {
        std::vector<std::uint64_t> counts(blocks, 1);
        for (auto& count : counts) {
            if (samples_max > 0) count = random() % (samples_max + 1);
        }
        return TestLayout(counts);
    }

    explicit TestLayout(const std::vector<std::uint64_t>& counts) {
        for (const std::uint64_t count : counts) {
            runs_.push_back({.first = samples_, .count = count});
            samples_ += count;
            one_each_ = one_each_ && count == 1;
        }
    }

    std::uint32_t block_count() const override { return static_cast<std::uint32_t>(runs_.size()); }
    std::uint64_t sample_count() const override { return samples_; }
    detail::SampleRun samples_of(std::uint32_t block) const override { return runs_.at(block); }
    bool one_sample_per_block() const override { return one_each_; }

private:
    std::vector<detail::SampleRun> runs_;
    std::uint64_t samples_ = 0;
    bool one_each_ = true;
};

}  // namespace larder::test
