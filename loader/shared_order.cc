#include "loader/shared_order.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "loader/divide.h"

namespace larder::detail {
namespace {

constexpr std::uint64_t kStretchStream = 0;  // group g shuffles with stream 1 + g, as in epoch_order.cc

}  // namespace

SharedOrder::SharedOrder(const SampleLayout& layout, DeliveredSamples delivered, const ShareOptions& options)
    : layout_(&layout),
      options_(options),
      delivered_(std::move(delivered)),
      one_sample_per_block_(layout.one_sample_per_block()),
      group_blocks_(one_sample_per_block_ ? 1 : options.order.window_blocks),
      share_((std::size_t{layout.block_count()} + 63) / 64),
      group_begins_{0} {
    const std::uint32_t blocks = layout.block_count();
    LARDER_ASSERT(delivered_.block_count() == blocks);
    const Permutation stretch(blocks, options.order.seed, options.order.epoch, kStretchStream);
    const auto left_of = [&](std::uint32_t block) {
        const std::uint64_t samples = layout.samples_of(block).count;
        return samples - delivered_.count(block, samples);
    };
    std::uint64_t left = 0;
    for (std::uint32_t block = 0; block < blocks; ++block) left += left_of(block);

    const ContiguousDivision division(
        left, DealLevel{true, options.drop_last, options.world_size, options.worker_count, options.batch_size});
    rank_batches_ = division.rank_batches(options.rank);
    if (rank_batches_ <= options.worker) return;
    const std::uint64_t own_batches = divide_rounding_up(rank_batches_ - options.worker, options.worker_count);
    const std::uint64_t begin = division.batch(options.rank, options.worker).begin;
    const PositionRun last = division.batch(options.rank, options.worker + (own_batches - 1) * options.worker_count);
    const std::uint64_t end = last.begin + last.count;
    samples_ = end - begin;

    std::uint64_t position = 0;
    for (std::uint64_t i = 0; i < blocks && position < end; ++i) {
        const auto block = static_cast<std::uint32_t>(stretch(i));
        const std::uint64_t count = left_of(block);
        const std::uint64_t from = std::max(begin, position) - position;
        const std::uint64_t to = std::min(end, position + count) - position;
        position += count;
        if (from >= to) continue;
        share_[block / 64] |= std::uint64_t{1} << (block % 64);
        ++share_blocks_;
        const std::uint64_t samples = layout.samples_of(block).count;
        if (to - from == samples) continue;
        std::vector<std::uint32_t>& part = parts_[block];
        std::uint64_t number = 0;
        for (std::uint64_t sample = 0; sample < samples; ++sample) {
            if (delivered_.has(block, sample)) continue;
            if (number >= from && number < to) part.push_back(static_cast<std::uint32_t>(sample));
            ++number;
        }
    }
}

std::uint64_t SharedOrder::batch_samples(std::uint64_t index) const {
    const std::uint64_t begin = index * options_.batch_size;
    return begin >= samples_ ? 0 : std::min<std::uint64_t>(options_.batch_size, samples_ - begin);
}

std::uint64_t SharedOrder::samples_of(std::uint32_t block) const {
    const auto part = parts_.find(block);
    return part == parts_.end() ? layout_->samples_of(block).count : part->second.size();
}

void SharedOrder::add(std::uint32_t block) {
    LARDER_ASSERT(chosen_.size() < share_blocks_);
    chosen_.push_back(block);
    if (one_sample_per_block_) {
        ready_samples_ = chosen_.size();
        return;
    }
    open_group_samples_ += samples_of(block);
    if (chosen_.size() % group_blocks_ != 0 && chosen_.size() != share_blocks_) return;
    ready_samples_ += std::exchange(open_group_samples_, 0);
    group_begins_.push_back(ready_samples_);
}

OrderedSample SharedOrder::at(std::uint64_t position) {
    LARDER_ASSERT(position < ready_samples_);
    if (one_sample_per_block_) {
        const std::uint32_t block = chosen_[position];
        return {.sample = layout_->samples_of(block).first, .block = block, .group = position};
    }
    const bool is_here = unfolded_ < group_begins_.size() - 1 && position >= group_begins_[unfolded_] &&
                         position < group_begins_[unfolded_ + 1];
    if (!is_here) {
        const auto after = std::ranges::upper_bound(group_begins_, position);
        unfold(static_cast<std::uint64_t>(after - group_begins_.begin()) - 1);
    }
    const GroupSample& found = group_[position - group_begins_[unfolded_]];
    return {.sample = found.sample, .block = found.block, .group = unfolded_};
}

void SharedOrder::unfold(std::uint64_t group) {
    unfolded_ = group;
    std::vector<GroupSample> samples;
    const std::uint64_t end = std::min<std::uint64_t>(chosen_.size(), (group + 1) * group_blocks_);
    for (std::uint64_t i = group * group_blocks_; i < end; ++i) {
        const std::uint32_t block = chosen_[i];
        const SampleRun run = layout_->samples_of(block);
        if (const auto part = parts_.find(block); part != parts_.end()) {
            for (const std::uint32_t sample : part->second) samples.push_back({block, run.first + sample});
        } else {
            for (std::uint64_t sample = 0; sample < run.count; ++sample) samples.push_back({block, run.first + sample});
        }
    }
    const Permutation within(samples.size(), options_.order.seed, options_.order.epoch, 1 + group);
    group_.clear();
    for (std::uint64_t i = 0; i < samples.size(); ++i) group_.push_back(samples[within(i)]);
}

DeliveredSamples SharedOrder::delivered_after(std::uint64_t positions) {
    DeliveredSamples delivered = delivered_;
    positions = std::min(positions, ready_samples_);
    const auto add_whole = [&](std::uint32_t block) {
        const auto part = parts_.find(block);
        if (part == parts_.end()) return delivered.add_block(block);
        const std::uint64_t samples = layout_->samples_of(block).count;
        for (const std::uint32_t sample : part->second) delivered.add(block, sample, samples);
    };
    if (one_sample_per_block_) {
        for (std::uint64_t i = 0; i < positions; ++i) delivered.add_block(chosen_[i]);
        return delivered;
    }
    const auto whole_groups =
        static_cast<std::uint64_t>(std::ranges::upper_bound(group_begins_, positions) - group_begins_.begin()) - 1;
    const std::uint64_t whole_blocks = std::min<std::uint64_t>(whole_groups * group_blocks_, chosen_.size());
    for (std::uint64_t i = 0; i < whole_blocks; ++i) add_whole(chosen_[i]);
    for (std::uint64_t position = group_begins_[whole_groups]; position < positions; ++position) {
        const OrderedSample ordered = at(position);
        const SampleRun run = layout_->samples_of(ordered.block);
        delivered.add(ordered.block, ordered.sample - run.first, run.count);
    }
    return delivered;
}

}  // namespace larder::detail
