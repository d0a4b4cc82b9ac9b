// BlockClient: handing out batches, and the statistics of their blocks.

#include <memory>
#include <utility>

#include "loader/batch_state.h"
#include "loader/block_client.h"

namespace larder::detail {

using protocol::BlockSource;

void BlockClient::count_delivered(BlockEntry& entry) {
    if (std::exchange(entry.counted, true)) return;
    switch (entry.source) {
        case BlockSource::memory: ++statistics_.memory_blocks; break;
        case BlockSource::disk: ++statistics_.disk_blocks; break;
        case BlockSource::peer: ++statistics_.peer_blocks; break;
        case BlockSource::remote:
            ++statistics_.remote_blocks;
            statistics_.remote_bytes += entry.length;
            break;
        case BlockSource::none: break;
    }
}

void BlockClient::hand_out(BatchState& state) {
    state.handed_out = true;
    ++batches_out_;
    spreads_bundles_ = false;
    for (const std::uint32_t tag : state.tags) {
        ++table_[tag].handed_out;
        count_delivered(table_[tag]);
    }
}

std::shared_ptr<BatchState> BlockClient::take_batch_state() {
    if (idle_states_.empty()) return std::make_shared<BatchState>();
    std::shared_ptr<BatchState> state = std::move(idle_states_.back());
    idle_states_.pop_back();
    return state;
}

void BlockClient::release_batch(std::shared_ptr<BatchState> state) {
    if (state->handed_out) --batches_out_;
    for (const std::uint32_t tag : state->tags) {
        if (state->handed_out) --table_[tag].handed_out;
        release(tag);
    }
    state->clear();
    idle_states_.push_back(std::move(state));
}

}  // namespace larder::detail
