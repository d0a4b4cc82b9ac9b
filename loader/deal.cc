#include "loader/deal.h"

#include <algorithm>

#include "base/assert.h"
#include "loader/divide.h"

namespace larder::detail {
namespace {

// Returns the position at which stretch `part` begins if `total` positions are dealt evenly to `parts` stretches: the
// first total % parts stretches take one more.
std::uint64_t stretch_begin(std::uint64_t total, std::uint64_t parts, std::uint64_t part) {
    return part * (total / parts) + std::min(part, total % parts);
}

bool is_same_dealing(const DealLevel& level, const DealOptions& options) {
    if (level.contiguous != options.contiguous) return false;
    return !level.contiguous || (level.drop_last == options.drop_last && level.world_size == options.world_size &&
                                 level.worker_count == options.worker_count && level.batch_size == options.batch_size);
}

}  // namespace

ContiguousDivision::ContiguousDivision(std::uint64_t size, DealLevel level) : size_(size), level_(level) {
    batches_ = level.drop_last ? size / level.batch_size / level.world_size * level.world_size
                               : divide_rounding_up(size, level.batch_size);
}

std::uint64_t ContiguousDivision::rank_begin(std::uint32_t rank) const {
    return stretch_begin(batches_, level_.world_size, rank);
}

std::uint64_t ContiguousDivision::rank_batches(std::uint32_t rank) const {
    return rank_begin(rank + 1) - rank_begin(rank);
}

PositionRun ContiguousDivision::batch(std::uint32_t rank, std::uint64_t index) const {
    const std::uint64_t count = rank_batches(rank);
    if (index >= count) return {};
    const std::uint64_t worker = index % level_.worker_count;
    const std::uint64_t batch =
        rank_begin(rank) + stretch_begin(count, level_.worker_count, worker) + index / level_.worker_count;
    const std::uint64_t begin = batch * level_.batch_size;
    return {.begin = begin, .count = std::min<std::uint64_t>(level_.batch_size, size_ - begin)};
}

std::vector<PositionRun> ContiguousDivision::remaining_runs() const {
    std::vector<PositionRun> runs;
    const auto add = [&](std::uint64_t first_batch, std::uint64_t last_batch) {
        const std::uint64_t begin = first_batch * level_.batch_size;
        const std::uint64_t end = std::min(last_batch * level_.batch_size, size_);
        if (begin >= end) return;
        if (!runs.empty() && runs.back().begin + runs.back().count == begin) {
            runs.back().count += end - begin;
        } else {
            runs.push_back({.begin = begin, .count = end - begin});
        }
    };
    for (std::uint32_t rank = 0; rank < level_.world_size; ++rank) {
        const std::uint64_t first = rank_begin(rank);
        const std::uint64_t count = rank_begin(rank + 1) - first;
        for (std::uint64_t worker = 0; worker < level_.worker_count; ++worker) {
            const std::uint64_t begin = stretch_begin(count, level_.worker_count, worker);
            const std::uint64_t end = stretch_begin(count, level_.worker_count, worker + 1);
            const std::uint64_t delivered =
                std::min(end - begin,
                         level_.taken > worker ? divide_rounding_up(level_.taken - worker, level_.worker_count) : 0);
            add(first + begin + delivered, first + end);
        }
    }
    add(batches_, divide_rounding_up(size_, level_.batch_size));  // what drop_last withheld from all ranks
    return runs;
}

Dealer::Dealer(std::uint64_t sample_count, std::vector<DealLevel> history, DealOptions options)
    : options_(options), left_(sample_count) {
    LARDER_ASSERT(options.world_size >= 1 && options.worker_count >= 1 && options.batch_size >= 1);
    if (!history.empty() && is_same_dealing(history.back(), options)) {
        taken_ = history.back().taken;
        history.pop_back();
    }
    for (const DealLevel& level : history) apply_past_level(level);
    if (!options.contiguous) taken_ = std::min(taken_, left_);
}

void Dealer::apply_past_level(const DealLevel& level) {
    std::vector<PositionRun> runs;
    if (level.contiguous) {
        runs = ContiguousDivision(left_, level).remaining_runs();
    } else if (level.taken < left_) {
        runs.push_back({.begin = level.taken, .count = left_ - level.taken});
    }
    std::vector<Piece> pieces;
    std::uint64_t end = 0;
    for (const PositionRun& run : runs) {
        pieces.push_back({.end = end + run.count, .shift = run.begin - end});
        end += run.count;
    }
    history_.push_back(level);
    pieces_.push_back(std::move(pieces));
    left_ = end;
}

std::uint64_t Dealer::rank_batches(std::uint32_t rank) const {
    if (options_.contiguous) {
        const DealLevel level{true, options_.drop_last, options_.world_size, options_.worker_count,
                              options_.batch_size};
        const std::uint64_t count = ContiguousDivision(left_, level).rank_batches(rank);
        return count - std::min(count, taken_);
    }
    const std::uint64_t global_batch = std::uint64_t{options_.batch_size} * options_.world_size;
    const std::uint64_t whole = (left_ - taken_) / global_batch;
    const std::uint64_t rest = (left_ - taken_) % global_batch;
    const bool has_part = !options_.drop_last && rest > std::uint64_t{options_.batch_size} * rank;
    return whole + (has_part ? 1 : 0);
}

PositionRun Dealer::batch(std::uint32_t rank, std::uint64_t index) const {
    if (options_.contiguous) {
        const DealLevel level{true, options_.drop_last, options_.world_size, options_.worker_count,
                              options_.batch_size};
        return ContiguousDivision(left_, level).batch(rank, taken_ + index);
    }
    if (index >= rank_batches(rank)) return {};
    const std::uint64_t begin = taken_ + (index * options_.world_size + rank) * options_.batch_size;
    return {.begin = begin, .count = std::min<std::uint64_t>(options_.batch_size, left_ - begin)};
}

std::uint64_t Dealer::position(std::uint64_t left_position) const {
    for (auto pieces = pieces_.rbegin(); pieces != pieces_.rend(); ++pieces) {
        const auto piece = std::upper_bound(pieces->begin(), pieces->end(), left_position,
                                            [](std::uint64_t value, const Piece& p) { return value < p.end; });
        left_position += piece->shift;
    }
    return left_position;
}

std::vector<DealLevel> Dealer::history_after(std::uint64_t rank_batches) const {
    std::vector<DealLevel> history = history_;
    DealLevel level{.contiguous = options_.contiguous, .taken = taken_};
    if (options_.contiguous) {
        level = {true, options_.drop_last, options_.world_size, options_.worker_count, options_.batch_size, taken_};
        const std::uint64_t batches_max = ContiguousDivision(left_, level).rank_batches(0);
        level.taken = taken_ + std::min(rank_batches, batches_max - std::min(batches_max, taken_));
    } else {
        const std::uint64_t batches_max = this->rank_batches(0);
        const std::uint64_t global_batch = std::uint64_t{options_.batch_size} * options_.world_size;
        level.taken = std::min(left_, taken_ + std::min(rank_batches, batches_max) * global_batch);
    }
    if (level.taken > 0) history.push_back(level);
    return history;
}

}  // namespace larder::detail
