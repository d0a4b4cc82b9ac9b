#pragma once

// Deals an epoch's order to ranks, and says what is left of it when the job stops, so that any number of ranks can take
// it up again. Pure arithmetic on positions; no manifest, no files.
//
// A history is the list of dealings an epoch has been through before now, each taken over what the ones before left:
//   interleaved  the first `taken` of what was left went out: batch by batch, rank after rank;
//   contiguous   what was left was cut into whole batches; each rank took one stretch of them, each worker of the rank
//                one stretch of that, and every rank has delivered `taken` batches, in turn from its workers. What is
//                left is what the workers' stretches still hold, one after the other.
// An epoch just begun has an empty history. Going on with the same ranks, workers and batch size adds nothing to it and
// goes on with the very batches that would have come; a change adds one entry.
//
// Rank batches are numbered from 0 where this dealing begins. Batch i of a rank comes from its worker i mod
// worker_count. With drop_last every rank has the same number of batches, all whole; without it every position is dealt
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
    std::uint64_t taken = 0;  // interleaved: positions; contiguous: batches by each rank

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

// What one contiguous dealing gives to whom; a position is one of the order it divides.
class ContiguousDivision {
public:
    ContiguousDivision(std::uint64_t size, DealLevel level);
    std::uint64_t rank_batches(std::uint32_t rank) const;
    // The rank's batch counted from the division's beginning.
    PositionRun batch(std::uint32_t rank, std::uint64_t index) const;
    // The runs of positions that are left once every rank has delivered level.taken batches, in order.
    std::vector<PositionRun> left() const;

private:
    std::uint64_t rank_begin(std::uint32_t rank) const;

    std::uint64_t size_;
    DealLevel level_;
    std::uint64_t batches_;
};

class Dealer {
public:
    Dealer(std::uint64_t sample_count, std::vector<DealLevel> history, DealOptions options);

    // Batches this rank will have from here to the epoch's end.
    std::uint64_t rank_batches(std::uint32_t rank) const;
    // Positions in what is left of the order; `position` makes them positions of the epoch.
    PositionRun batch(std::uint32_t rank, std::uint64_t index) const;
    std::uint64_t position(std::uint64_t left_position) const;

    // The history once every rank has taken `rank_batches` batches more (or all it has).
    std::vector<DealLevel> history_after(std::uint64_t rank_batches) const;

private:
    struct Piece {
        std::uint64_t end;    // of the piece, in what is left
        std::uint64_t shift;  // added to a position in what is left, gives one in the order that level divided
    };

    void take_up(const DealLevel& level);

    DealOptions options_;
    std::vector<DealLevel> history_;          // dealings that are over
    std::vector<std::vector<Piece>> pieces_;  // of each, what it left
    std::uint64_t left_ = 0;                  // positions this dealing divides
    std::uint64_t taken_ = 0;                 // of this dealing, before now
};

}  // namespace larder::detail
