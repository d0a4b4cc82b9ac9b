#pragma once

// The position of a job, as bytes: what fixes the order (seed, epoch, dataset version, shuffle, window), and the
// dealings that the epoch has been through. Little-endian, tens of bytes:
//
//   "LDST" | u8 layout = 2 | u8 flags (1: shuffle) | u16 level_count | u64 seed | u64 epoch | u64 content_hash |
//   u64 manifest_version | u64 sample_count | u32 window_blocks |
//   level_count x (u8 flags (1: contiguous, 2: drop_last) | u32 world_size | u32 worker_count | u32 batch_size | u64
//   taken) | u32 CRC32C of all before
//
// A job that reads in shared order has layout 3: no dealings, and before the checksum
//
//   u32 loaders | u32 part_count | part_count x u32 loader | DeliveredSamples
//
// `loaders` is the number of ranks times workers. Each of them knows what it delivered itself; a state that all of them
// are parts of can be resumed.
//
// Layout 1 is still read. It has the dataset's id in place of the content's hash. The id is a node's own, so such a
// state resumes only on the node that made it.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "loader/deal.h"
#include "loader/delivered_samples.h"

namespace larder::detail {

// The samples that a job in shared order has delivered of its epoch, and the loaders that know it.
struct SharedProgress {
    std::uint32_t loaders = 1;         // ranks times workers
    std::vector<std::uint32_t> parts;  // the loaders that this comes from, ascending; loader = rank * workers + worker
    DeliveredSamples delivered;

    friend bool operator==(const SharedProgress&, const SharedProgress&) = default;
};

struct LoaderState {
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
    std::uint64_t content_hash = 0;      // Manifest::content_hash
    std::uint64_t dataset_id = 0;        // in a decoded state: 0, unless it has layout 1
    std::uint64_t manifest_version = 0;  // a node's own number
    std::uint64_t sample_count = 0;
    std::uint32_t window_blocks = 0;
    bool shuffle = true;
    std::vector<DealLevel> history;
    std::optional<SharedProgress> shared;  // of a job that reads in shared order

    friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

std::vector<std::byte> encode(const LoaderState& state);
Result<LoaderState> decode_state(std::span<const std::byte> bytes);

// Returns what all of these states have delivered together. Fails if they are not of one epoch of one job.
Result<LoaderState> merge(std::span<const LoaderState> states);

// Returns true if a saved state is of the dataset version that the loader has open.
bool is_of_same_version(const LoaderState& saved, const LoaderState& loader);

// Fails if the saved state has another seed, or another choice of shuffle, than the loader.
Result<void> check_same_options(const LoaderState& saved, const LoaderState& loader);

// Fails with the first thing, other than the epoch, in which a saved state's order differs from the loader's.
Result<void> check_same_order(const LoaderState& saved, const LoaderState& loader);

}  // namespace larder::detail
