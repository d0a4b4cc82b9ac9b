#pragma once

// Implements Loader. A LoaderCore walks its part of the epoch's order (EpochOrder, Dealer) and plans batches ahead. A
// planned sample holds a reference to its block, so the block is requested as soon as there is room. `next` waits until
// the blocks of the first planned batch are here, and hands the batch out. Measured times determine how far ahead it
// plans (loader/prefetch_depth.h).
//
// If blocks hold many samples, the blocks of the group being planned are held until the plan leaves the group, so that
// no block is fetched twice for one group.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "loader/block_client.h"
#include "loader/deal.h"
#include "loader/epoch_order.h"
#include "loader/larder.h"
#include "loader/loader_state.h"

namespace larder::detail {

class ManifestLayout final : public SampleLayout {
public:
    explicit ManifestLayout(const protocol::Manifest& manifest) : manifest_(&manifest) {}
    std::uint32_t block_count() const override { return manifest_->block_count(); }
    std::uint64_t sample_count() const override { return manifest_->sample_count(); }
    SampleRun samples_of(std::uint32_t block) const override {
        const protocol::Block found = manifest_->block(block);
        return {.first = found.first_sample, .count = found.sample_count};
    }
    bool one_sample_per_block() const override {
        return manifest_->block_count() == manifest_->sample_count() && manifest_->header().samples_per_block_max <= 1;
    }

private:
    const protocol::Manifest* manifest_;
};

class LoaderCore {
public:
    static Result<std::unique_ptr<LoaderCore>> open(LoaderOptions options);
    ~LoaderCore();

    Result<std::optional<Batch>> next();

    std::uint64_t epoch() const { return epoch_; }
    std::uint64_t batches_per_epoch() const { return dealer_->rank_batches(options_.rank); }
    const protocol::Manifest& manifest() const { return client_->manifest(); }
    std::vector<std::byte> state() const { return state_after(delivered_ * options_.worker_count); }
    std::vector<std::byte> state_after(std::uint64_t rank_batches) const;
    Result<void> restore(std::span<const std::byte> state);
    void start_epoch(std::uint64_t epoch, std::vector<DealLevel> history);
    void set_training_loop(std::shared_ptr<const TrainingLoopWait> loop) {
        client_->set_training_loop(std::move(loop));
    }
    const LoaderStatistics& statistics() const { return client_->statistics(); }

private:
    struct PlannedSample {
        std::uint64_t sample;
        std::uint32_t tag;
    };
    struct PlannedBatch {
        std::vector<PlannedSample> samples;
        std::size_t arrived = 0;  // leading samples that are known to be ready or failed
    };

    explicit LoaderCore(LoaderOptions options) : options_(std::move(options)) {}

    Result<void> connect(std::uint64_t version);
    Result<void> attach(BlockClient& client) const;
    LoaderState job_state() const;
    void extend_plan();
    bool plan_batch();
    void drop_plan(std::size_t keep);
    void leave_group();
    PlannedBatch& planned(std::size_t i) { return plan_[(plan_begin_ + i) % plan_.size()]; }
    Result<void> await(PlannedBatch& batch);
    // Returns nullopt if some blocks are damaged: they were requested again and must be awaited.
    Result<std::optional<Batch>> deliver(PlannedBatch& batch);

    LoaderOptions options_;
    bool contiguous_ = false;
    std::shared_ptr<BlockClient> client_;
    std::unique_ptr<ManifestLayout> layout_;

    std::uint64_t epoch_ = 0;
    std::uint64_t passes_begun_ = 0;
    std::optional<Dealer> dealer_;
    std::optional<EpochOrder> order_;  // made when the epoch's first batch is planned
    std::uint64_t delivered_ = 0;      // batches by this worker since the epoch or the restored state began
    std::vector<PlannedBatch> plan_;   // a ring of `planned_` batches from plan_begin_ on
    std::size_t plan_begin_ = 0;
    std::size_t planned_ = 0;
    bool plan_ended_ = false;
    std::uint64_t group_ = 0;
    std::vector<std::uint32_t> group_tags_;  // blocks held for the group being planned

    std::int64_t returned_ns_ = 0;  // when `next` last returned; 0: never
    std::int64_t period_ns_ = 0;    // between batches, without waits; smoothed
};

}  // namespace larder::detail
