#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "loader/batch.h"
#include "loader/block_client.h"
#include "loader/block_error.h"
#include "loader/deal.h"
#include "loader/epoch_order.h"
#include "loader/larder.h"
#include "loader/loader_state.h"
#include "loader/prefetch_depth.h"
#include "loader/slot_budget.h"

namespace larder::detail {
namespace {

constexpr std::uint32_t kRingEntriesMin = 1024;
constexpr std::uint32_t kRingEntriesMax = 16384;

Result<void> check_options(const LoaderOptions& options) {
    const auto bad = [](const std::string& what) { return fail(ErrorCode::invalid_argument, what); };
    if (options.batch_size == 0) return bad("batch_size must be at least 1");
    if (options.shuffle_window_blocks == 0) return bad("shuffle_window_blocks must be at least 1");
    if (options.rank >= options.world_size) {
        return bad("rank " + std::to_string(options.rank) + " is not below world_size " +
                   std::to_string(options.world_size));
    }
    if (options.worker >= options.worker_count) {
        return bad("worker " + std::to_string(options.worker) + " is not below worker_count " +
                   std::to_string(options.worker_count));
    }
    if (std::uint64_t{options.world_size} * options.worker_count > std::uint64_t{1} << 24) {
        return bad("world_size times worker_count must not exceed 16777216");
    }
    return {};
}

}  // namespace

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

// Implements Loader. A LoaderCore walks its part of the epoch's order (EpochOrder, Dealer) and plans batches ahead. A
// planned sample holds a reference to its block, so the block is requested as soon as there is room. `next` makes the
// first planned batch (loader/batch.h). Measured times determine how far ahead it plans (loader/prefetch_depth.h).
//
// If blocks hold many samples, the blocks of the group being planned are held until the plan leaves the group, so that
// no block is fetched twice for one group.
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
    void set_training_loop(std::shared_ptr<const TrainingLoopWait> loop,
                           std::shared_ptr<const protocol::TakeLog> takes) {
        client_->set_training_loop(std::move(loop), std::move(takes));
    }
    const LoaderStatistics& statistics() const { return client_->statistics(); }

private:
    using PlannedBatch = std::vector<BatchSample>;

    explicit LoaderCore(LoaderOptions options) : options_(std::move(options)) {}

    // With `saved`, fails if the order of that version differs from the state's.
    Result<void> connect(std::uint64_t version, const LoaderState* saved = nullptr);
    Result<void> attach(BlockClient& client) const;
    LoaderState job_state(const protocol::Manifest& manifest, const ManifestLayout& layout) const;
    void extend_plan();
    bool plan_batch();
    void drop_plan(std::size_t keep);
    void leave_group();
    PlannedBatch& planned(std::size_t i) { return plan_[(plan_begin_ + i) % plan_.size()]; }

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

    std::int64_t returned_ns_ = 0;  // when `next` last returned a batch of this epoch; 0: never
    std::int64_t period_ns_ = 0;    // between batches, without waits; smoothed; 0: not measured
};

Result<std::unique_ptr<LoaderCore>> LoaderCore::open(LoaderOptions options) {
    if (auto checked = check_options(options); !checked) return std::unexpected(checked.error());
    std::unique_ptr<LoaderCore> core(new LoaderCore(std::move(options)));
    if (auto connected = core->connect(0); !connected) return std::unexpected(connected.error());
    core->start_epoch(core->options_.first_epoch, {});
    return core;
}

LoaderCore::~LoaderCore() {
    if (!client_) return;
    drop_plan(0);
    client_->close();
}

Result<void> LoaderCore::connect(std::uint64_t version, const LoaderState* saved) {
    auto client = BlockClient::open(options_, version);
    if (!client) return std::unexpected(client.error());
    const protocol::Manifest& manifest = (*client)->manifest();
    if (manifest.sample_count() == 0) {
        return fail(ErrorCode::invalid_argument, "dataset \"" + options_.dataset + "\" has no samples");
    }
    auto layout = std::make_unique<ManifestLayout>(manifest);
    if (saved != nullptr) {
        if (auto same = check_same_order(*saved, job_state(manifest, *layout)); !same) return same;
    }
    contiguous_ =
        options_.deal == Deal::contiguous || (options_.deal == Deal::automatic && !layout->one_sample_per_block());

    if (options_.plan_only) {
        (*client)->close();
    } else if (auto attached = attach(**client); !attached) {
        return attached;
    }
    if (client_) {
        (*client)->statistics() = client_->statistics();
        client_->close();
    }
    client_ = std::move(*client);
    layout_ = std::move(layout);
    return {};
}

Result<void> LoaderCore::attach(BlockClient& client) const {
    const protocol::Manifest& manifest = client.manifest();
    const SlotNeeds needs{.batch_size = options_.batch_size,
                          .window_blocks = options_.shuffle_window_blocks,
                          .interleaved_ranks = contiguous_ ? 1 : options_.world_size * options_.worker_count};
    auto slots = plan_slots(manifest, needs, options_.memory_budget_bytes);
    if (!slots) return std::unexpected(slots.error());
    const std::uint64_t two_batches = std::uint64_t{2} * options_.batch_size;
    const auto entries = static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(std::bit_ceil(two_batches), kRingEntriesMin, kRingEntriesMax));
    return client.attach({.ring_entries = entries,
                          .slot_bytes = slots->slot_bytes,
                          .slab_bytes = slots->slab_bytes,
                          .sequential = !options_.shuffle,
                          .world_size = options_.world_size});
}

// --- epochs and states

void LoaderCore::start_epoch(std::uint64_t epoch, std::vector<DealLevel> history) {
    drop_plan(0);
    client_->forget_blocks();
    epoch_ = epoch;
    ++passes_begun_;
    delivered_ = 0;
    plan_ended_ = false;
    order_.reset();
    dealer_.emplace(layout_->sample_count(), std::move(history),
                    DealOptions{.contiguous = contiguous_,
                                .drop_last = options_.drop_last,
                                .world_size = options_.world_size,
                                .worker_count = options_.worker_count,
                                .batch_size = options_.batch_size});
    client_->set_epoch(epoch);
}

LoaderState LoaderCore::job_state(const protocol::Manifest& manifest, const ManifestLayout& layout) const {
    const protocol::ManifestHeader& header = manifest.header();
    return {.seed = options_.seed,
            .epoch = epoch_,
            .content_hash = manifest.content_hash(),
            .dataset_id = header.dataset_id,
            .manifest_version = header.version,
            .sample_count = header.sample_count,
            .window_blocks = layout.one_sample_per_block() ? 0 : options_.shuffle_window_blocks,
            .shuffle = options_.shuffle,
            .history = {}};
}

std::vector<std::byte> LoaderCore::state_after(std::uint64_t rank_batches) const {
    LoaderState state = job_state(manifest(), *layout_);
    state.history = dealer_->history_after(rank_batches);
    return encode(state);
}

Result<void> LoaderCore::restore(std::span<const std::byte> bytes) {
    auto saved = decode_state(bytes);
    if (!saved) return std::unexpected(saved.error());
    const LoaderState own = job_state(manifest(), *layout_);
    if (auto same = check_same_options(*saved, own); !same) return same;
    if (!is_of_same_version(*saved, own) && saved->manifest_version != own.manifest_version) {
        // Perhaps the dataset was indexed again since then. The job continues with the version it began with.
        drop_plan(0);
        if (auto connected = connect(saved->manifest_version, &*saved); !connected) {
            return std::unexpected(
                connected.error().within("the saved loader state is not of this node's newest version; version " +
                                         std::to_string(saved->manifest_version)));
        }
        start_epoch(epoch_, {});
    } else if (auto same = check_same_order(*saved, own); !same) {
        return same;
    }
    start_epoch(saved->epoch, std::move(saved->history));
    return {};
}

// --- planning

void LoaderCore::extend_plan() {
    const std::uint64_t target = prefetch_batches(client_->latency_ns(), period_ns_, options_.batch_size);
    // Plans only once half of the plan is used up, so that many small batches are requested together.
    if (planned_ > target / 2 && planned_ >= 2) return;
    while (planned_ < target && plan_batch()) {
    }
}

bool LoaderCore::plan_batch() {
    if (plan_ended_) return false;
    const std::uint64_t index = options_.worker + (delivered_ + planned_) * options_.worker_count;
    const PositionRun run = dealer_->batch(options_.rank, index);
    if (run.count == 0) {
        plan_ended_ = true;
        leave_group();
        return false;
    }
    if (!order_) {
        order_.emplace(*layout_, OrderOptions{.seed = options_.seed,
                                              .epoch = epoch_,
                                              .shuffle = options_.shuffle,
                                              .window_blocks = options_.shuffle_window_blocks});
    }
    if (planned_ == plan_.size()) {
        std::ranges::rotate(plan_, plan_.begin() + static_cast<std::ptrdiff_t>(plan_begin_));
        plan_begin_ = 0;
        plan_.resize(std::max<std::size_t>(4, plan_.size() * 2));
    }
    PlannedBatch& batch = planned(planned_++);
    batch.clear();
    const bool has_groups = !layout_->one_sample_per_block();
    // Batches share blocks of many samples, so each such block is a bundle of its own, as kNoBundle says.
    const std::uint64_t bundle = has_groups ? kNoBundle : (passes_begun_ << 40) + delivered_ + planned_;
    for (std::uint64_t i = 0; i < run.count; ++i) {
        const OrderedSample ordered = order_->at(dealer_->position(run.begin + i));
        if (has_groups && ordered.group != group_) {
            leave_group();
            group_ = ordered.group;
        }
        const ClientBlockTable::Acquired acquired = client_->acquire(ordered.block, bundle);
        if (has_groups && acquired.fresh) {
            // A second reference keeps the block until leave_group().
            client_->acquire(ordered.block, bundle);
            group_tags_.push_back(acquired.tag);
        }
        batch.push_back({.sample = ordered.sample, .tag = acquired.tag});
    }
    return true;
}

void LoaderCore::leave_group() {
    for (const std::uint32_t tag : group_tags_) client_->release(tag);
    group_tags_.clear();
}

void LoaderCore::drop_plan(std::size_t keep) {
    leave_group();
    while (planned_ > keep) {
        PlannedBatch& batch = planned(--planned_);
        for (const BatchSample& sample : batch) client_->release(sample.tag);
        batch.clear();
        plan_ended_ = false;
    }
    client_->drop_unwanted();
}

// --- delivering

Result<std::optional<Batch>> LoaderCore::next() {
    if (options_.plan_only)
        return fail(ErrorCode::invalid_argument, "a loader opened with plan_only delivers no samples");
    extend_plan();
    if (auto ticked = client_->tick(); !ticked) return std::unexpected(ticked.error());
    if (planned_ == 0) {
        start_epoch(epoch_ + 1, {});
        returned_ns_ = 0;  // what the loop does between epochs is no period
        return std::optional<Batch>{};
    }
    LoaderStatistics& statistics = client_->statistics();
    const std::int64_t stall_before_ns = statistics.stall_ns;
    PlannedBatch& batch = planned(0);
    const auto make_room = [this, is_plan_cut = false]() mutable -> Result<void> {
        if (!std::exchange(is_plan_cut, true)) {
            drop_plan(1);  // batches planned ahead give way to the one that is due
        } else if (!client_->make_room()) {
            return std::unexpected(starved_error(*client_, "batches that are still held"));
        }
        return {};
    };
    auto made =
        make_batch(client_, batch,
                   {.dataset = options_.dataset, .skip_failed = options_.skip_failed, .is_planned = true}, make_room);
    if (!made) return std::unexpected(made.error());
    batch.clear();

    plan_begin_ = (plan_begin_ + 1) % plan_.size();
    --planned_;
    ++delivered_;
    const std::int64_t now_ns = client_->now_ns();
    if (returned_ns_ != 0) {
        const std::int64_t period_ns = now_ns - returned_ns_ - (statistics.stall_ns - stall_before_ns);
        period_ns_ = period_ns_ == 0 ? period_ns : period_ns_ + (period_ns - period_ns_) / 8;
    }
    returned_ns_ = now_ns;
    return std::optional<Batch>(std::move(*made));
}

}  // namespace larder::detail

namespace larder {

Loader::Loader(std::unique_ptr<detail::LoaderCore> core) : core_(std::move(core)) {}
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;
Loader::~Loader() = default;

Result<Loader> Loader::open(LoaderOptions options) {
    if (auto checked = detail::check_budget(options.memory_budget_bytes); !checked)
        return std::unexpected(checked.error());
    auto core = detail::LoaderCore::open(std::move(options));
    if (!core) return std::unexpected(core.error());
    return Loader(std::move(*core));
}

Result<std::optional<Batch>> Loader::next() {
    return core_->next();
}
std::uint64_t Loader::epoch() const {
    return core_->epoch();
}
std::uint64_t Loader::batches_per_epoch() const {
    return core_->batches_per_epoch();
}
std::uint64_t Loader::sample_count() const {
    return core_->manifest().sample_count();
}
std::vector<std::string> Loader::class_names() const {
    return core_->manifest().class_names();
}
std::vector<std::byte> Loader::state() const {
    return core_->state();
}
std::vector<std::byte> Loader::state_after(std::uint64_t rank_batches) const {
    return core_->state_after(rank_batches);
}
Result<void> Loader::restore(std::span<const std::byte> state) {
    return core_->restore(state);
}

Result<void> Loader::start_epoch(std::uint64_t epoch) {
    core_->start_epoch(epoch, {});
    return {};
}

void Loader::set_training_loop(std::shared_ptr<const TrainingLoopWait> loop,
                               std::shared_ptr<const protocol::TakeLog> takes) {
    core_->set_training_loop(std::move(loop), std::move(takes));
}
LoaderStatistics Loader::statistics() const {
    return core_->statistics();
}

}  // namespace larder
