#include <algorithm>
#include <string>
#include <utility>

#include "loader/block_error.h"
#include "loader/dataset_core.h"
#include "loader/slot_budget.h"

namespace larder::detail {
namespace {

constexpr std::uint32_t kRingEntries = 4096;

}  // namespace

Result<std::unique_ptr<DatasetCore>> DatasetCore::open(ConnectOptions options, const DatasetChoices& choices) {
    auto client = BlockClient::open(options, choices.version);
    if (!client) return std::unexpected(client.error());
    const SlotNeeds needs{.batch_size = 1, .window_blocks = 1, .interleaved_ranks = 1};
    if (choices.may_exceed_budget) {
        const std::uint64_t needed_bytes = needed_slot_bytes((*client)->manifest(), needs);
        options.memory_budget_bytes = std::max(options.memory_budget_bytes, needed_bytes);
    }
    auto slots = plan_slots((*client)->manifest(), needs, options.memory_budget_bytes);
    if (!slots) return std::unexpected(slots.error());
    auto attached = (*client)->attach(
        {.ring_entries = kRingEntries,
         .slot_bytes = slots->slot_bytes,
         .slab_bytes = slots->slab_bytes,
         .order = choices.sequential ? protocol::ReadOrder::sequential : protocol::ReadOrder::random});
    if (!attached) return std::unexpected(attached.error());
    return std::unique_ptr<DatasetCore>(new DatasetCore(std::move(options), std::move(*client)));
}

Result<Batch> DatasetCore::fetch(std::span<const std::uint64_t> indices) {
    for (const std::uint64_t index : indices) {
        if (index < manifest().sample_count()) continue;
        return fail(ErrorCode::invalid_argument, "sample " + std::to_string(index) + " is not among the " +
                                                     std::to_string(manifest().sample_count()) + " of dataset \"" +
                                                     options_.dataset + "\"");
    }
    client_->begin_pass();
    samples_.clear();
    for (const std::uint64_t index : indices) {
        samples_.push_back(
            {.sample = index, .tag = client_->acquire(manifest().block_of_sample(index), kNoBundle).tag});
    }
    const auto ticked = client_->tick();
    const auto give_up = [this]() -> Result<void> {
        return std::unexpected(starved_error(*client_, "batches that are still held and by this one"));
    };
    auto batch = ticked ? make_batch(client_, samples_, {.dataset = options_.dataset}, give_up)
                        : std::unexpected(ticked.error());
    if (!batch) {
        for (const BatchSample& sample : samples_) client_->release(sample.tag);
    }
    return batch;
}

}  // namespace larder::detail

namespace larder {

Dataset::Dataset(std::unique_ptr<detail::DatasetCore> core) : core_(std::move(core)) {}
Dataset::Dataset(Dataset&&) noexcept = default;
Dataset& Dataset::operator=(Dataset&&) noexcept = default;
Dataset::~Dataset() = default;

Result<Dataset> Dataset::open(ConnectOptions options) {
    if (auto checked = detail::check_budget(options.memory_budget_bytes); !checked)
        return std::unexpected(checked.error());
    auto core = detail::DatasetCore::open(std::move(options), {});
    if (!core) return std::unexpected(core.error());
    return Dataset(std::move(*core));
}

std::uint64_t Dataset::sample_count() const {
    return core_->manifest().sample_count();
}
std::uint64_t Dataset::total_bytes() const {
    return core_->manifest().total_bytes();
}
std::vector<std::string> Dataset::class_names() const {
    return core_->manifest().class_names();
}
Result<Batch> Dataset::fetch(std::span<const std::uint64_t> indices) {
    return core_->fetch(indices);
}
void Dataset::set_training_loop(std::shared_ptr<const TrainingLoopWait> loop,
                                std::shared_ptr<const protocol::TakeLog> takes) {
    core_->set_training_loop(std::move(loop), std::move(takes));
}
LoaderStatistics Dataset::statistics() const {
    return core_->statistics();
}

}  // namespace larder
