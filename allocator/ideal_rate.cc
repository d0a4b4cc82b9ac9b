#include "allocator/ideal_rate.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace larder::allocator {
namespace {

constexpr double kOutlierDeviations = 5;  // times the median absolute deviation
constexpr double kDeviationMin = 0.02;    // part of the median: even equal pieces differ by this much
constexpr double kOutlierBatches = 1.5;   // a difference of one batch is no outlier

// Bytes times ranks, because busy time is summed over the ranks.
double rank_bytes(const IdealRate::Interval& piece) {
    return static_cast<double>(piece.bytes) * piece.ranks;
}

// Returns the smallest difference between unequal pieces: one batch, if all batches have one size.
double quantum_of(const std::deque<IdealRate::Interval>& pieces) {
    std::vector<double> bytes;
    bytes.reserve(pieces.size());
    for (const IdealRate::Interval& piece : pieces) bytes.push_back(rank_bytes(piece));
    std::ranges::sort(bytes);
    double quantum = 0;
    for (std::size_t i = 1; i < bytes.size(); ++i) {
        const double gap = bytes[i] - bytes[i - 1];
        if (gap > 0 && (quantum == 0 || gap < quantum)) quantum = gap;
    }
    return quantum;
}

struct Stretch {
    double bytes = 0;
    double busy_s = 0;
};

// Joins each piece with its neighbours. Loader workers count whole batches, some of which their loop has yet to take.
// Bytes that one piece counts too early are missing in the next, so leaving out one of the two would bias the rate. No
// stretch is left out for being too fast: a loop may pause, but cannot exceed its own speed.
std::vector<Stretch> stretches_of(const std::deque<IdealRate::Interval>& pieces) {
    std::vector<Stretch> stretches(pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const std::size_t end = std::min(i + 2, pieces.size());
        for (std::size_t j = i == 0 ? 0 : i - 1; j < end; ++j) {
            stretches[i].bytes += rank_bytes(pieces[j]);
            stretches[i].busy_s += pieces[j].busy_s;
        }
    }
    return stretches;
}

double median_of(std::vector<double>& values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::ranges::nth_element(values, middle);
    return *middle;
}

}  // namespace

void IdealRate::add(const Interval& interval) {
    if (interval.ranks == 0 || !(interval.busy_s >= 0)) return;
    // Ranks begin and end node by node, so fewer of them for a moment are no change. Those that have ended read
    // nothing.
    const std::uint32_t ranks_before = !pieces_.empty() ? pieces_.back().ranks : joining_.ranks;
    if (interval.ranks < ranks_before && (interval.bytes == 0 || fewer_intervals_ < kFewerIntervalsMax)) {
        if (interval.bytes > 0) ++fewer_intervals_;
        return;
    }
    fewer_intervals_ = 0;
    if (joining_.bytes > 0 && joining_.ranks != interval.ranks) forget();
    if (!pieces_.empty() && pieces_.back().ranks != interval.ranks) forget();
    if (warmed_s_ < kWarmUp_s) {
        // A job that takes no bytes has not begun.
        if (interval.bytes > 0) warmed_s_ += interval.busy_s / interval.ranks;
        return;
    }
    joining_.bytes += interval.bytes;
    joining_.busy_s += interval.busy_s;
    joining_.ranks = interval.ranks;
    if (joining_.bytes == 0 || joining_.busy_s < kPieceBusy_s * joining_.ranks) return;
    pieces_.push_back(joining_);
    joining_ = {.ranks = 0};
    if (pieces_.size() > kWindow) pieces_.pop_front();
    if (pieces_.size() >= kPiecesMin) rate_ = measured();
}

double IdealRate::measured() const {
    const std::vector<Stretch> stretches = stretches_of(pieces_);
    std::vector<double> values;
    values.reserve(stretches.size());
    for (const Stretch& stretch : stretches) values.push_back(stretch.bytes / stretch.busy_s);
    const double median = median_of(values);
    for (double& value : values) value = std::abs(value - median);
    const double deviation = std::max(median_of(values), kDeviationMin * median);
    const double quantum = quantum_of(pieces_);
    double bytes = 0;
    double busy_s = 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
        const Stretch& stretch = stretches[i];
        const double missing_bytes = median * stretch.busy_s - stretch.bytes;
        if (missing_bytes > kOutlierDeviations * deviation * stretch.busy_s &&
            missing_bytes > kOutlierBatches * quantum)
            continue;
        bytes += rank_bytes(pieces_[i]);
        busy_s += pieces_[i].busy_s;
    }
    return bytes / busy_s;
}

void IdealRate::forget() {
    warmed_s_ = 0;
    fewer_intervals_ = 0;
    joining_ = {.ranks = 0};
    pieces_.clear();
    rate_.reset();
}

}  // namespace larder::allocator
