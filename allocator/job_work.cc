#include "allocator/job_work.h"

#include <algorithm>
#include <utility>

namespace larder::allocator {
namespace {

constexpr std::int64_t kClockWindow_ns = 10'000'000'000;
constexpr std::int64_t kLateMax_ns = 6'000'000'000;  // waits that are known later are not waited for
constexpr std::int64_t kLookEvery_ns = 200'000'000;  // for many nodes, since a look goes over all of them
constexpr std::size_t kNodesFew = 16;
constexpr std::int64_t kKeep_ns = 20'000'000'000;  // united waits
constexpr std::size_t kPiecesMax = 64;             // of a node; nodes report once a second
constexpr std::size_t kWaitsMax = 4096;            // that are kept
constexpr double kToleratedBatches = 2;            // of each rank; a report may cut so many

double seconds(std::int64_t ns) {
    return static_cast<double>(ns) * 1e-9;
}

}  // namespace

void NodeClock::add(std::uint64_t node_us, std::int64_t now_ns) {
    const std::int64_t delay_ns = now_ns - static_cast<std::int64_t>(node_us) * 1000;
    if (window_ns_ == std::numeric_limits<std::int64_t>::min()) {
        window_ns_ = now_ns;
        least_ns_ = before_ns_ = delay_ns;
    } else if (now_ns - window_ns_ >= kClockWindow_ns) {
        window_ns_ = now_ns;
        before_ns_ = std::exchange(least_ns_, delay_ns);
    } else {
        least_ns_ = std::min(least_ns_, delay_ns);
    }
}

std::int64_t NodeClock::at_ns(std::uint64_t node_us) const {
    return static_cast<std::int64_t>(node_us) * 1000 + std::min(least_ns_, before_ns_);
}

void JobWork::WaitSum::add(Wait wait) {
    if (!items_.empty()) {
        Wait& last = items_.back().wait;
        if (wait.begin_ns <= last.end_ns) {
            last.end_ns = std::max(last.end_ns, wait.end_ns);
            return;
        }
    }
    const std::int64_t before_ns = until(wait.begin_ns);
    items_.push_back({.wait = wait, .before_ns = before_ns});
    if (items_.size() > kWaitsMax) items_.pop_front();
}

std::int64_t JobWork::WaitSum::until(std::int64_t at_ns) const {
    if (items_.empty()) return 0;
    const auto after = std::ranges::upper_bound(items_, at_ns, {}, [](const Item& item) { return item.wait.begin_ns; });
    if (after == items_.begin()) return items_.front().before_ns;
    const Item& last = *(after - 1);
    return last.before_ns + std::min(at_ns, last.wait.end_ns) - last.wait.begin_ns;
}

void JobWork::WaitSum::drop_old(std::int64_t now_ns) {
    // The last one stays, as the sum goes on from there.
    while (items_.size() > 1 && items_.front().wait.end_ns < now_ns - kKeep_ns) items_.pop_front();
}

void JobWork::take_waits(Node& node, Waits waits, std::int64_t now_ns) {
    const WaitsReport& report = *waits.report;
    const std::int64_t until_ns =
        std::clamp(waits.clock->at_ns(report.until_us), std::min(node.until_ns, now_ns), now_ns);
    std::uint64_t at_us = report.since_us;
    for (std::size_t i = 0; i + 1 < report.lengths_us.size(); i += 2) {
        // Each sum is of two values that were checked.
        const std::uint64_t begin_us = std::min(at_us + report.lengths_us[i], report.until_us);
        at_us = std::min(begin_us + report.lengths_us[i + 1], report.until_us);
        const Wait wait{.begin_ns = std::max(waits.clock->at_ns(begin_us), node.until_ns),
                        .end_ns = std::min(waits.clock->at_ns(at_us), until_ns)};
        if (wait.begin_ns >= wait.end_ns) continue;
        node.own.add(wait);
        if (node.waits.size() < kWaitsMax) node.waits.push_back(wait);
    }
    node.own.drop_old(now_ns);
    node.until_ns = until_ns;
    node.counted_ns = std::clamp(waits.clock->at_ns(report.counted_us), std::min(node.counted_ns, until_ns), until_ns);
    node.batches = report.batches;
    node.shortest_s = static_cast<double>(report.shortest_us) * 1e-6;
}

void JobWork::begin(const std::string& node, Waits waits, std::int64_t now_ns) {
    Node& begun = nodes_[node];
    begun = {.heard_ns = now_ns, .is_in_step = waits.report != nullptr};
    if (begun.is_in_step) take_waits(begun, waits, now_ns);
}

void JobWork::add(const std::string& node, const IdealRate::Interval& work, Waits waits, std::int64_t now_ns) {
    Node& known = nodes_[node];
    known.heard_ns = now_ns;
    const bool was_in_step = std::exchange(known.is_in_step, waits.report != nullptr);
    Piece piece{.work = work, .is_in_step = false};
    if (known.is_in_step) {
        const bool is_continued = was_in_step && waits.clock->at_ns(waits.report->since_us) <= known.until_ns &&
                                  waits.report->batches >= known.batches;
        const std::uint64_t batches_before = known.batches;
        const std::int64_t from_ns = known.counted_ns;
        take_waits(known, waits, now_ns);
        if (is_continued) {
            piece = {.work = work,
                     .is_in_step = true,
                     .from_ns = from_ns,
                     .to_ns = known.counted_ns,
                     .waited_ns = known.own.until(known.counted_ns) - known.own.until(from_ns),
                     .batches = static_cast<double>(known.batches - batches_before)};
        } else {
            // Nobody knows how long the other nodes' ranks waited for this one.
            piece.work.bytes = 0;
            piece.work.busy_s = 0;
        }
    }
    if (known.pieces.size() < kPiecesMax) known.pieces.push_back(piece);
    if (nodes_.size() <= kNodesFew || now_ns - looked_ns_ >= kLookEvery_ns) unite(now_ns);
}

// Unites the waits up to the time up to which all nodes' are known, and counts the work up to then.
void JobWork::unite(std::int64_t now_ns) {
    looked_ns_ = now_ns;
    may_be_whole_ = true;
    std::int64_t until_ns = now_ns;
    double shortest_s = 0;
    for (const auto& [name, node] : nodes_) {
        if (!node.is_in_step || now_ns - node.heard_ns >= kSilent_ns) continue;
        until_ns = std::min(until_ns, std::max(node.until_ns, now_ns - kLateMax_ns));
        if (node.shortest_s > 0 && (shortest_s == 0 || node.shortest_s < shortest_s)) shortest_s = node.shortest_s;
    }
    std::vector<Wait> waits;
    for (auto& [name, node] : nodes_) {
        while (!node.waits.empty() && node.waits.front().begin_ns < until_ns) {
            Wait& first = node.waits.front();
            const Wait wait{.begin_ns = std::max(first.begin_ns, united_until_ns_),
                            .end_ns = std::min(first.end_ns, until_ns)};
            if (wait.begin_ns < wait.end_ns) waits.push_back(wait);
            first.begin_ns = until_ns;
            if (first.end_ns > until_ns) break;
            node.waits.pop_front();
        }
    }
    std::ranges::sort(waits, {}, &Wait::begin_ns);
    for (const Wait& wait : waits) united_.add(wait);
    united_until_ns_ = std::max(united_until_ns_, until_ns);
    for (auto& [name, node] : nodes_) {
        while (!node.pieces.empty() && (!node.pieces.front().is_in_step || node.pieces.front().to_ns <= until_ns)) {
            count(node, node.pieces.front(), shortest_s);
            node.pieces.pop_front();
        }
    }
    united_.drop_old(now_ns);
}

void JobWork::count(Node& node, const Piece& piece, double shortest_s) const {
    double busy_s = piece.work.busy_s;
    if (piece.is_in_step) {
        const std::int64_t for_others_ns = united_.until(piece.to_ns) - united_.until(piece.from_ns) - piece.waited_ns;
        const double in_step_s = busy_s - piece.work.ranks * std::max(0.0, seconds(for_others_ns));
        const double tolerated_s = kToleratedBatches * shortest_s * piece.work.ranks;
        const double least_s = std::max(node.owed_s, -tolerated_s) + piece.batches * shortest_s;
        busy_s = std::min(busy_s, std::max({in_step_s, least_s, 0.0}));
        node.owed_s = std::min(least_s - busy_s, tolerated_s);
    }
    if (!node.done) node.done = IdealRate::Interval{.ranks = 0};
    node.done->bytes += piece.work.bytes;
    node.done->busy_s += busy_s;
    node.done->ranks = piece.work.ranks;
}

std::optional<IdealRate::Interval> JobWork::take(std::int64_t now_ns) {
    if (!std::exchange(may_be_whole_, false)) return std::nullopt;
    IdealRate::Interval whole{.ranks = 0};
    bool any = false;
    for (const auto& [name, node] : nodes_) {
        if (!node.done && now_ns - node.heard_ns < kSilent_ns) return std::nullopt;
        if (!node.done) continue;
        any = true;
        whole.bytes += node.done->bytes;
        whole.busy_s += node.done->busy_s;
        whole.ranks += node.done->ranks;
    }
    if (!any) return std::nullopt;
    for (auto& [name, node] : nodes_) node.done.reset();
    return whole;
}

}  // namespace larder::allocator
