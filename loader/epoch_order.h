#pragma once

// The order of one epoch for the whole job: position -> sample, a pure function of (seed, epoch, the manifest's shape,
// shuffle, window). Blocks are permuted globally; each `window_blocks` consecutive blocks of that order form a group;
// the samples of a group are permuted within it. If every block holds one sample, the order is a permutation of the
// samples and every position takes O(1). Otherwise groups have unequal sizes. A short table, filled only as far as
// positions are requested, holds where every n-th group begins. One group is kept expanded, so walking forward takes
// constant time per sample. Without shuffle the order is the manifest's.

#include <cstdint>
#include <vector>

#include "loader/permutation.h"

namespace larder::detail {

struct SampleRun {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
};

// SampleLayout is the part of a manifest that the order needs. Blocks hold consecutive samples, in order.
class SampleLayout {
public:
    virtual ~SampleLayout() = default;
    virtual std::uint32_t block_count() const = 0;
    virtual std::uint64_t sample_count() const = 0;
    virtual SampleRun samples_of(std::uint32_t block) const = 0;
    // True if block i holds sample i and nothing else.
    virtual bool one_sample_per_block() const = 0;
};

struct OrderOptions {
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
    bool shuffle = true;
    std::uint32_t window_blocks = 16;  // at least 1
};

struct OrderedSample {
    std::uint64_t sample = 0;
    std::uint32_t block = 0;
    std::uint64_t group = 0;
};

class EpochOrder {
public:
    // `layout` must outlive the EpochOrder.
    EpochOrder(const SampleLayout& layout, OrderOptions options);

    std::uint64_t size() const { return sample_count_; }
    // `position` < size(). Not const: keeps the group of the last position.
    OrderedSample at(std::uint64_t position);

private:
    void seek(std::uint64_t position);
    void unfold(std::uint64_t group, std::uint64_t begin);

    struct BlockEnd {
        std::uint64_t end;  // samples of the group up to and including this block
        std::uint64_t first_sample;
        std::uint32_t block;
    };

    const SampleLayout* layout_;
    OrderOptions options_;
    std::uint64_t sample_count_;
    bool one_sample_per_block_;
    Permutation blocks_;
    std::uint64_t groups_per_mark_ = 1;
    std::vector<std::uint64_t> marks_;  // [i]: position at which group i * groups_per_mark_ begins

    std::uint64_t group_ = 0;
    std::uint64_t group_begin_ = 0;
    std::uint64_t group_end_ = 0;
    std::vector<BlockEnd> group_blocks_;
    Permutation within_group_;
};

}  // namespace larder::detail
