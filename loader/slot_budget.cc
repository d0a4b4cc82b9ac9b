#include "loader/slot_budget.h"

#include <algorithm>

#include "base/machine_memory.h"
#include "base/units.h"
#include "cache/protocol/record.h"
#include "cache/protocol/wire.h"
#include "loader/divide.h"

namespace larder::detail {
namespace {

// Bytes that a slot may take beyond those of its block.
constexpr std::uint64_t kSlotOverhead_bytes = protocol::kRecordHeaderBytes + protocol::kPageBytes - 1;

constexpr std::uint64_t kAutomaticMin_bytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kAutomaticMax_bytes = std::uint64_t{1} << 30;

std::uint64_t round_up_to_pages(std::uint64_t bytes) {
    return divide_rounding_up(bytes, protocol::kPageBytes) * protocol::kPageBytes;
}

}  // namespace

std::uint64_t needed_slot_bytes(const protocol::Manifest& manifest, const SlotNeeds& needs) {
    const std::uint64_t blocks_total = std::max<std::uint64_t>(1, manifest.block_count());
    const std::uint64_t batches_samples = std::uint64_t{2} * needs.batch_size;
    std::uint64_t blocks = batches_samples;
    if (manifest.header().samples_per_block_max > 1) {
        // `samples_each`: the samples of a block that go to one rank. Allow for twice the blocks of an even spread.
        const std::uint64_t samples_each =
            std::max<std::uint64_t>(1, manifest.sample_count() / blocks_total / needs.interleaved_ranks);
        const std::uint64_t spread_blocks = 2 * divide_rounding_up(batches_samples, samples_each);
        blocks = needs.window_blocks +
                 std::min(batches_samples, std::max<std::uint64_t>(needs.window_blocks, spread_blocks));
    }
    blocks = std::min(blocks, blocks_total);
    const std::uint64_t largest_bytes = manifest.header().block_bytes_max;
    const std::uint64_t mean_bytes = divide_rounding_up(manifest.total_bytes(), blocks_total);
    const std::uint64_t bytes =
        std::min(manifest.blocks_bytes_max(blocks), 3 * mean_bytes * blocks + 4 * largest_bytes);
    // One more block: a run does not wrap around the end of slot memory.
    return round_up_to_pages(bytes + blocks * kSlotOverhead_bytes + largest_bytes + kSlotOverhead_bytes);
}

Result<void> check_budget(std::uint64_t budget_bytes) {
    const MachineMemory machine = machine_memory();
    if (budget_bytes <= machine.bytes) return {};
    return fail(ErrorCode::invalid_argument, "a memory budget of " + format_bytes(budget_bytes) +
                                                 " is more than there is: " + describe(machine) +
                                                 "; give less, or none for the default");
}

Result<SlotPlan> plan_slots(const protocol::Manifest& manifest, const SlotNeeds& needs, std::uint64_t budget_bytes) {
    const std::uint64_t needed_bytes = needed_slot_bytes(manifest, needs);
    if (budget_bytes == 0) {
        budget_bytes = std::clamp(2 * needed_bytes, kAutomaticMin_bytes, std::max(kAutomaticMax_bytes, needed_bytes));
    }
    budget_bytes = std::min(budget_bytes, protocol::kSlotBytesMax);
    if (needed_bytes > budget_bytes) {
        return fail(ErrorCode::invalid_argument,
                    "a memory budget of " + format_bytes(budget_bytes) + " is too small: two batches of " +
                        std::to_string(needs.batch_size) + " samples and a shuffle window of " +
                        std::to_string(needs.window_blocks) + " blocks need " +
                        format_bytes_at_least(needed_bytes, unit_family_of(budget_bytes)) + " with blocks of up to " +
                        format_bytes(manifest.header().block_bytes_max) +
                        "; raise the memory budget, or lower batch_size or shuffle_window_blocks");
    }
    const std::uint64_t all_slots_bytes = manifest.total_bytes() + manifest.block_count() * kSlotOverhead_bytes;
    const std::uint64_t useful_bytes = std::max(needed_bytes, 2 * round_up_to_pages(all_slots_bytes));
    const std::uint64_t bundle_blocks = manifest.header().samples_per_block_max > 1
                                            ? 1
                                            : std::min<std::uint64_t>(needs.batch_size, manifest.block_count());
    const std::uint64_t bundle_bytes =
        round_up_to_pages(manifest.blocks_bytes_max(bundle_blocks) + bundle_blocks * kSlotOverhead_bytes);
    const std::uint64_t half_budget_bytes = budget_bytes / 2 / protocol::kPageBytes * protocol::kPageBytes;
    const std::uint64_t slab_bytes = std::min(bundle_bytes, half_budget_bytes);
    const std::uint64_t slab_count =
        std::max<std::uint64_t>(2, std::min(divide_rounding_up(useful_bytes, slab_bytes), budget_bytes / slab_bytes));
    return SlotPlan{.slot_bytes = slab_count * slab_bytes, .slab_bytes = slab_bytes};
}

}  // namespace larder::detail
