#pragma once

// The order in which one loader of a job reads its share of an epoch if the daemon chooses the blocks. The share is
// fixed at the begin: what is left of the epoch is dealt to ranks and workers in contiguous stretches of a permutation
// of the blocks (deal.h), so each rank has as many batches as with a seeded order. A block at the end of a stretch may
// be in two shares, with some of its samples in each.
//
// Each `window_blocks` consecutive choices form a group, and a group's samples are permuted within it, by the job's
// seed. If every block holds one sample, the samples come in the order of the choices.

#include <cstdint>
#include <map>
#include <vector>

#include "loader/deal.h"
#include "loader/delivered_samples.h"
#include "loader/epoch_order.h"
#include "loader/permutation.h"

namespace larder::detail {

struct ShareOptions {
    OrderOptions order;
    std::uint32_t rank = 0;
    std::uint32_t world_size = 1;
    std::uint32_t worker = 0;
    std::uint32_t worker_count = 1;
    std::uint32_t batch_size = 1;
    bool drop_last = false;
};

class SharedOrder {
public:
    // The share of what `delivered` leaves of the epoch. `layout` must outlive the SharedOrder.
    SharedOrder(const SampleLayout& layout, DeliveredSamples delivered, const ShareOptions& options);

    // The batches of the whole rank, over all its workers.
    std::uint64_t rank_batches() const { return rank_batches_; }
    // The samples of the loader's own batch `index`; 0: it has no such batch.
    std::uint64_t batch_samples(std::uint64_t index) const;

    // The blocks of the share, a bit for each block of the dataset, and their number.
    const std::vector<std::uint64_t>& share() const { return share_; }
    std::uint64_t share_blocks() const { return share_blocks_; }

    // Adds the next choice, a block of the share that was not added before.
    void add(std::uint32_t block);
    std::uint64_t added_blocks() const { return chosen_.size(); }
    // So many samples have a place: those of whole groups.
    std::uint64_t ready_samples() const { return ready_samples_; }
    // `position` < ready_samples(). Not const: keeps the group of the last position.
    OrderedSample at(std::uint64_t position);

    // Returns what is delivered of the epoch once the first `positions` samples of this order are, too.
    DeliveredSamples delivered_after(std::uint64_t positions);

private:
    std::uint64_t samples_of_group(std::uint64_t group) const;
    std::uint64_t samples_of(std::uint32_t block) const;
    void unfold(std::uint64_t group);

    const SampleLayout* layout_;
    ShareOptions options_;
    DeliveredSamples delivered_;
    bool one_sample_per_block_;
    std::uint64_t group_blocks_;
    std::uint64_t rank_batches_ = 0;
    std::uint64_t samples_ = 0;  // of the share
    std::vector<std::uint64_t> share_;
    std::uint64_t share_blocks_ = 0;
    // The samples of blocks that are in the share in part, counted from the block's first sample.
    std::map<std::uint32_t, std::vector<std::uint32_t>> parts_;

    std::vector<std::uint32_t> chosen_;
    std::vector<std::uint64_t> group_begins_;  // of each whole group, and the end of the last one
    std::uint64_t ready_samples_ = 0;
    std::uint64_t open_group_samples_ = 0;  // of the choices that form no whole group yet

    struct GroupSample {
        std::uint32_t block;
        std::uint64_t sample;
    };
    std::uint64_t unfolded_ = ~std::uint64_t{0};  // the group in `group_`
    std::vector<GroupSample> group_;
};

}  // namespace larder::detail
