#include "loader/dataset_core.h"

#include <string>
#include <utility>

#include "loader/batch_state.h"
#include "loader/block_error.h"
#include "loader/slot_budget.h"

namespace larder::detail {
namespace {

constexpr std::uint32_t kRingEntries = 4096;

}  // namespace

Result<std::unique_ptr<DatasetCore>> DatasetCore::open(ConnectOptions options) {
    auto client = BlockClient::open(options, 0);
    if (!client) return std::unexpected(client.error());
    const SlotNeeds needs{.batch_size = 1, .window_blocks = 1, .interleaved_ranks = 1};
    auto slots = plan_slots((*client)->manifest(), needs, options.memory_budget_bytes);
    if (!slots) return std::unexpected(slots.error());
    auto attached = (*client)->attach({.ring_entries = kRingEntries,
                                       .slot_bytes = slots->slot_bytes,
                                       .slab_bytes = slots->slab_bytes,
                                       .sequential = false});
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
    std::shared_ptr<BatchState> state = client_->take_batch_state();
    const auto give_up = [&](Error error) {
        client_->release_batch(std::move(state));
        return std::unexpected(std::move(error));
    };
    for (const std::uint64_t index : indices) {
        state->tags.push_back(client_->acquire(manifest().block_of_sample(index), kNoBundle).tag);
    }
    if (auto arrived = await(state->tags); !arrived) return give_up(arrived.error());
    for (std::size_t i = 0; i < indices.size();) {
        const BlockEntry& entry = client_->block(state->tags[i]);
        if (entry.state == BlockState::failed) return give_up(block_error(*client_, entry, options_.dataset));
        auto added = state->add(manifest(), client_->format(), indices[i], entry.block, entry.bytes());
        if (added) {
            ++i;
            continue;
        }
        if (added.error().code != ErrorCode::corrupt) return give_up(added.error());
        const auto refetched = client_->refetch_damaged(state->tags[i], added.error().message);
        if (!refetched) return give_up(added.error());
        client_->release(std::exchange(state->tags[i], *refetched));
        if (auto arrived = await({&*refetched, 1}); !arrived) return give_up(arrived.error());
    }
    state->finish();
    client_->hand_out(*state);
    client_->statistics().samples += indices.size();
    client_->statistics().bytes += state->bytes();
    state->client = client_;
    return Batch(std::move(state));
}

Result<void> DatasetCore::await(std::span<const std::uint32_t> tags) {
    Result<void> result = client_->tick();
    for (std::size_t arrived = 0; result && arrived < tags.size();) {
        const BlockState state = client_->block(tags[arrived]).state;
        if (state == BlockState::ready || state == BlockState::failed) {
            ++arrived;
            continue;
        }
        client_->begin_wait();
        auto progress = client_->progress();
        if (!progress) {
            result = std::unexpected(progress.error());
        } else if (*progress == BlockClient::Progress::starved) {
            result = std::unexpected(starved_error(*client_, "batches that are still held and by this one"));
        }
    }
    client_->end_wait();
    return result;
}

}  // namespace larder::detail
