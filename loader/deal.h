#pragma once

// Deals an epoch's order to ranks, and describes what is left of it when the job stops, so that any number of ranks can
// resume it. Pure arithmetic on positions; no manifest, no files.
//
// A history lists the past dealings of an epoch, each over what the ones before it left:
//   interleaved  the first `taken` positions of what was left were delivered, batch by batch, rank after rank;
//   contiguous   what was left was cut into whole batches; each rank took one stretch of them, and each worker of the
//                rank one stretch of that. Every rank has delivered `taken` batches, in turn from its workers. This
//                leaves the rest of the workers' stretches, one after the other.
// A new epoch has an empty history. Resuming with the same ranks, workers and batch size adds nothing to the history
// and continues with the very next batches. A change adds one entry.
//
// Rank batches are numbered from 0 at the start of this dealing. Batch i of a rank comes from its worker i mod
// worker_count. With drop_last every rank has the same number of batches, all whole. Without it every position is dealt
// once, ranks differ by at most one batch, and only the epoch's last batch may be short.

#include <cstdint>
#include <vector>

#include "loader/larder.h"

namespace larder::detail {

struct DealLevel {
    bool contiguous = false;
    bool drop_last = false;
    std::uint32_t world_size = 1;
    std::uint32_t worker_count = 1;
    std::uint32_t batch_size = 1;
    std::uint64_t taken = 0;  // interleaved: positions; contiguous: batches of each rank

    friend bool operator==(const DealLevel&, const DealLevel&) = default;
};

struct DealOptions {
    bool contiguous = false;
    bool drop_last = false;
    std::uint32_t world_size = 1;
    std::uint32_t worker_count = 1;
    std::uint32_t batch_size = 1;
};

struct PositionRun {
    std::uint64_t begin = 0;
    std::uint64_t count = 0;  // 0: the rank has no such batch
};

// One contiguous dealing's division of an order. Positions count within this order.
class ContiguousDivision {
public:
    ContiguousDivision(std::uint64_t size, DealLevel level);
    std::uint64_t rank_batches(std::uint32_t rank) const;
    // The rank's batch `index`, counted from the start of the division.
    PositionRun batch(std::uint32_t rank, std::uint64_t index) const;
    // The runs of positions, in order, that are left once every rank has delivered level.taken batches.
    std::vector<PositionRun> remaining_runs() const;

private:
    std::uint64_t rank_begin(std::uint32_t rank) const;

    std::uint64_t size_;
    DealLevel level_;
    std::uint64_t batches_;
};

class Dealer {
public:
    Dealer(std::uint64_t sample_count, std::vector<DealLevel> history, DealOptions options);

    // The number of batches of this rank from here to the end of the epoch.
    std::uint64_t rank_batches(std::uint32_t rank) const;
    // Returns positions within what is left of the order. `position` maps them to positions of the epoch.
    PositionRun batch(std::uint32_t rank, std::uint64_t index) const;
    std::uint64_t position(std::uint64_t left_position) const;

    // Returns the history once every rank has taken `rank_batches` more batches, or all that it has.
    std::vector<DealLevel> history_after(std::uint64_t rank_batches) const;

private:
    struct Piece {
        std::uint64_t end;    // end of the piece, within what is left
        std::uint64_t shift;  // added to a position within what is left, gives the one in the order that was divided
    };

    void apply_past_level(const DealLevel& level);

    DealOptions options_;
    std::vector<DealLevel> history_;          // past dealings
    std::vector<std::vector<Piece>> pieces_;  // what each past dealing left
    std::uint64_t left_ = 0;                  // positions that this dealing divides
    std::uint64_t taken_ = 0;                 // of this dealing, when it was resumed; see DealLevel::taken
};

}  // namespace larder::detail
