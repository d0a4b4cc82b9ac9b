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
#include "loader/delivered_samples.h"
#include "loader/divide.h"
#include "loader/epoch_order.h"
#include "loader/larder.h"
#include "loader/loader_state.h"
#include "loader/prefetch_depth.h"
#include "loader/shared_order.h"
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
    if (options.order == Order::shared && !options.shuffle) return bad("order shared needs shuffle");
    if (options.order == Order::shared && options.deal == Deal::interleaved) {
        return bad("order shared deals contiguously, not interleaved");
    }
    if (options.order == Order::shared && options.plan_only) {
        return bad("order shared has no plan: the daemon chooses the blocks as they are read");
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
// With Order::shared the daemon chooses the blocks: a SharedOrder takes the place of EpochOrder and Dealer. Choices are
// asked for as far ahead as batches are planned.
//
// If blocks hold many samples, the blocks of the group being planned are held until the plan leaves the group, so that
// no block is fetched twice for one group.
class LoaderCore {
public:
    static Result<std::unique_ptr<LoaderCore>> open(LoaderOptions options);
    ~LoaderCore();

    Result<std::optional<Batch>> next();

    std::uint64_t epoch() const { return epoch_; }
    std::uint64_t batches_per_epoch() const {
        return shared_ ? shared_->rank_batches() : dealer_->rank_batches(options_.rank);
    }
    const protocol::Manifest& manifest() const { return client_->manifest(); }
    std::vector<std::byte> state() const { return state_after(delivered_ * options_.worker_count); }
    std::vector<std::byte> state_after(std::uint64_t rank_batches) const;
    Result<void> restore(std::span<const std::byte> state);
    void start_epoch(std::uint64_t epoch, std::vector<DealLevel> history,
                     std::optional<DeliveredSamples> delivered = {});
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
    protocol::ReadOrder read_order() const;
    OrderOptions order_options() const;
    std::uint32_t loader_number() const { return options_.rank * options_.worker_count + options_.worker; }
    // The positions of the own batch that is planned next: of the dealt order, or of the shared one.
    PositionRun next_run() const;
    OrderedSample sample_at(std::uint64_t position);
    void extend_plan();
    void want_choices(std::uint64_t batches);
    bool plan_batch();
    Result<void> wait_for_choices();
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
    std::optional<EpochOrder> order_;            // made when the epoch's first batch is planned
    mutable std::optional<SharedOrder> shared_;  // with Order::shared
    std::uint64_t delivered_ = 0;                // batches by this worker since the epoch or the restored state began
    std::vector<PlannedBatch> plan_;             // a ring of `planned_` batches from plan_begin_ on
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
    contiguous_ = options_.order == Order::shared || options_.deal == Deal::contiguous ||
                  (options_.deal == Deal::automatic && !layout->one_sample_per_block());

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
                          .order = read_order(),
                          .world_size = options_.world_size});
}

// --- epochs and states

protocol::ReadOrder LoaderCore::read_order() const {
    if (options_.order == Order::shared) return protocol::ReadOrder::shared;
    return options_.shuffle ? protocol::ReadOrder::random : protocol::ReadOrder::sequential;
}

void LoaderCore::start_epoch(std::uint64_t epoch, std::vector<DealLevel> history,
                             std::optional<DeliveredSamples> delivered) {
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
    if (options_.order != Order::shared) return;
    const ShareOptions share{.order = order_options(),
                             .rank = options_.rank,
                             .world_size = options_.world_size,
                             .worker = options_.worker,
                             .worker_count = options_.worker_count,
                             .batch_size = options_.batch_size,
                             .drop_last = options_.drop_last};
    shared_.emplace(*layout_, delivered ? std::move(*delivered) : DeliveredSamples(layout_->block_count()), share);
    client_->begin_share(shared_->share());
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
            .history = {},
            .shared = options_.order == Order::shared ? std::optional(SharedProgress{}) : std::nullopt};
}

std::vector<std::byte> LoaderCore::state_after(std::uint64_t rank_batches) const {
    LoaderState state = job_state(manifest(), *layout_);
    if (shared_) {
        const std::uint64_t own_batches =
            rank_batches > options_.worker ? divide_rounding_up(rank_batches - options_.worker, options_.worker_count)
                                           : 0;
        const std::uint64_t positions = std::min(own_batches, delivered_) * options_.batch_size;
        state.shared = {.loaders = options_.world_size * options_.worker_count,
                        .parts = {loader_number()},
                        .delivered = shared_->delivered_after(positions)};
        return encode(state);
    }
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
    if (!saved->shared) {
        start_epoch(saved->epoch, std::move(saved->history));
        return {};
    }
    SharedProgress& progress = *saved->shared;
    const auto samples_of = [this](std::uint32_t block) { return layout_->samples_of(block).count; };
    if (progress.delivered.block_count() != layout_->block_count() || !progress.delivered.fits(samples_of)) {
        return fail(ErrorCode::invalid_argument, "the saved loader state is of another division into blocks");
    }
    if (progress.parts.size() < progress.loaders) {
        return fail(ErrorCode::invalid_argument,
                    "the saved loader state is that of " + std::to_string(progress.parts.size()) + " of " +
                        std::to_string(progress.loaders) + " ranks and workers: merge the states of all of them first");
    }
    start_epoch(saved->epoch, {}, std::move(progress.delivered));
    return {};
}

OrderOptions LoaderCore::order_options() const {
    return {.seed = options_.seed,
            .epoch = epoch_,
            .shuffle = options_.shuffle,
            .window_blocks = options_.shuffle_window_blocks};
}

// --- planning

void LoaderCore::extend_plan() {
    const std::uint64_t target = prefetch_batches(client_->latency_ns(), period_ns_, options_.batch_size);
    // Plans only once half of the plan is used up, so that many small batches are requested together.
    if (planned_ > target / 2 && planned_ >= 2) return;
    if (shared_) want_choices(target);
    while (planned_ < target && plan_batch()) {
    }
}

// Wants the blocks of so many batches beyond the delivered ones. A block should be fetched soon after it is chosen,
// while it is at hand. So no more is wanted while chosen blocks wait for room, and then a batch or a group at a time.
void LoaderCore::want_choices(std::uint64_t batches) {
    for (const std::uint32_t block : client_->choices().take_chosen()) shared_->add(block);
    if (planned_ > 0 && client_->any_unsent()) return;
    const std::uint64_t blocks = layout_->block_count();
    const std::uint64_t samples = (delivered_ + batches) * options_.batch_size;
    const std::uint64_t window = layout_->one_sample_per_block() ? 0 : options_.shuffle_window_blocks;
    const std::uint64_t wanted = divide_rounding_up(samples * blocks, layout_->sample_count()) + window;
    const std::uint64_t expected = client_->choices().expected();
    const std::uint64_t most =
        std::min({wanted, shared_->share_blocks(),
                  shared_->added_blocks() + std::max<std::uint64_t>(window, options_.batch_size)});
    const std::uint64_t coming = shared_->added_blocks() + expected;
    if (most > coming) client_->choices().want(static_cast<std::uint32_t>(most - coming));
}

PositionRun LoaderCore::next_run() const {
    const std::uint64_t own_index = delivered_ + planned_;
    if (shared_) return {.begin = own_index * options_.batch_size, .count = shared_->batch_samples(own_index)};
    return dealer_->batch(options_.rank, options_.worker + own_index * options_.worker_count);
}

OrderedSample LoaderCore::sample_at(std::uint64_t position) {
    return shared_ ? shared_->at(position) : order_->at(dealer_->position(position));
}

bool LoaderCore::plan_batch() {
    if (plan_ended_) return false;
    const PositionRun run = next_run();
    if (run.count == 0) {
        plan_ended_ = true;
        leave_group();
        return false;
    }
    if (shared_ && run.begin + run.count > shared_->ready_samples()) return false;
    if (!shared_ && !order_) order_.emplace(*layout_, order_options());
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
        const OrderedSample ordered = sample_at(run.begin + i);
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

// Waits until a batch is planned or the epoch ends: the daemon may yet have to choose the blocks of the next batch.
Result<void> LoaderCore::wait_for_choices() {
    if (planned_ > 0 || plan_ended_) return {};
    client_->begin_wait();
    Result<void> result;
    while (result && planned_ == 0 && !plan_ended_) {
        if (auto moved = client_->progress(); !moved) result = std::unexpected(moved.error());
        extend_plan();
    }
    client_->end_wait();
    return result;
}

// --- delivering

Result<std::optional<Batch>> LoaderCore::next() {
    if (options_.plan_only)
        return fail(ErrorCode::invalid_argument, "a loader opened with plan_only delivers no samples");
    extend_plan();
    if (auto ticked = client_->tick(); !ticked) return std::unexpected(ticked.error());
    if (auto chosen = wait_for_choices(); !chosen) return std::unexpected(chosen.error());
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

Result<std::vector<std::byte>> Loader::merge_states(std::span<const std::vector<std::byte>> states) {
    std::vector<detail::LoaderState> decoded;
    decoded.reserve(states.size());
    for (const std::vector<std::byte>& bytes : states) {
        auto state = detail::decode_state(bytes);
        if (!state) return std::unexpected(state.error());
        decoded.push_back(std::move(*state));
    }
    const auto merged = detail::merge(decoded);
    if (!merged) return std::unexpected(merged.error());
    return detail::encode(*merged);
}

void Loader::set_training_loop(std::shared_ptr<const TrainingLoopWait> loop,
                               std::shared_ptr<const protocol::TakeLog> takes) {
    core_->set_training_loop(std::move(loop), std::move(takes));
}
LoaderStatistics Loader::statistics() const {
    return core_->statistics();
}

}  // namespace larder
