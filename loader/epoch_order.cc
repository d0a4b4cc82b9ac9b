#include "loader/epoch_order.h"

#include <algorithm>

#include "base/assert.h"

namespace larder::detail {
namespace {

constexpr std::uint64_t kMarksMax = 4096;
constexpr std::uint64_t kBlockStream = 0;  // group g shuffles with stream 1 + g

}  // namespace

EpochOrder::EpochOrder(const SampleLayout& layout, OrderOptions options)
    : layout_(&layout),
      options_(options),
      sample_count_(layout.sample_count()),
      one_sample_per_block_(layout.one_sample_per_block()),
      blocks_(options.shuffle ? Permutation(layout.block_count(), options.seed, options.epoch, kBlockStream)
                              : Permutation::identity(layout.block_count())) {
    LARDER_ASSERT(options_.window_blocks >= 1);
    if (one_sample_per_block_) return;
    const std::uint64_t groups =
        (std::uint64_t{layout.block_count()} + options_.window_blocks - 1) / options_.window_blocks;
    groups_per_mark_ = std::max<std::uint64_t>(1, (groups + kMarksMax - 1) / kMarksMax);
    marks_.push_back(0);
    unfold(0, 0);
}

OrderedSample EpochOrder::at(std::uint64_t position) {
    LARDER_ASSERT(position < sample_count_);
    if (one_sample_per_block_) {
        const std::uint64_t sample = blocks_(position);
        return {.sample = sample, .block = static_cast<std::uint32_t>(sample), .group = 0};
    }
    if (position < group_begin_ || position >= group_end_) seek(position);
    const std::uint64_t within = within_group_(position - group_begin_);
    const auto block = std::upper_bound(group_blocks_.begin(), group_blocks_.end(), within,
                                        [](std::uint64_t value, const BlockEnd& b) { return value < b.end; });
    const std::uint64_t begin = block == group_blocks_.begin() ? 0 : std::prev(block)->end;
    return {.sample = block->first_sample + (within - begin), .block = block->block, .group = group_};
}

void EpochOrder::seek(std::uint64_t position) {
    const auto mark =
        static_cast<std::uint64_t>(std::upper_bound(marks_.begin(), marks_.end(), position) - marks_.begin() - 1);
    const std::uint64_t mark_group = mark * groups_per_mark_;
    if (position < group_begin_ || mark_group > group_) unfold(mark_group, marks_[mark]);
    while (position >= group_end_) unfold(group_ + 1, group_end_);
}

void EpochOrder::unfold(std::uint64_t group, std::uint64_t begin) {
    if (group == marks_.size() * groups_per_mark_) marks_.push_back(begin);
    const std::uint64_t first = group * options_.window_blocks;
    const std::uint64_t last = std::min<std::uint64_t>(first + options_.window_blocks, layout_->block_count());
    LARDER_ASSERT(first < last || layout_->block_count() == 0);
    group_blocks_.clear();
    std::uint64_t samples = 0;
    for (std::uint64_t i = first; i < last; ++i) {
        const auto block = static_cast<std::uint32_t>(blocks_(i));
        const SampleRun run = layout_->samples_of(block);
        samples += run.count;
        group_blocks_.push_back({.end = samples, .first_sample = run.first, .block = block});
    }
    group_ = group;
    group_begin_ = begin;
    group_end_ = begin + samples;
    within_group_ = options_.shuffle ? Permutation(samples, options_.seed, options_.epoch, 1 + group)
                                     : Permutation::identity(samples);
}

}  // namespace larder::detail
