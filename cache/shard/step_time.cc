#include "cache/shard/step_time.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace larder::cache {
namespace {

using protocol::TakeLog;

constexpr std::int64_t kNone_ns = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLateMax_ns = 4'000'000'000;  // a loop in another process is silent for longer: it does not wait
constexpr std::int64_t kClockSlack_ns = 1'000'000'000;  // of reports, between clocks that are the same
constexpr std::int64_t kPeriodMax_ns = 60'000'000'000;
constexpr std::int64_t kToleratedBatches = 2;       // a look may cut so many
constexpr std::uint32_t kWindow = 32;               // times between batches
constexpr std::int64_t kRecent_ns = 4'000'000'000;  // a report of the node may be lost, or late
constexpr std::size_t kRecentMax = 256;             // waits

struct Entry {
    std::uint64_t number = 0;
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
};

// Returns the entries that were not overwritten meanwhile, in order.
std::vector<Entry> entries_of(const TakeLog& log) {
    const std::uint64_t count = log.count.load(std::memory_order_acquire);
    const std::uint64_t first = count - std::min<std::uint64_t>(count, TakeLog::kEntries);
    std::vector<Entry> entries;
    entries.reserve(TakeLog::kEntries);
    for (std::uint64_t number = first; number < count; ++number) {
        const TakeLog::Entry& entry = log.entries[number % TakeLog::kEntries];
        entries.push_back({.number = number,
                           .begin_ns = entry.begin_ns.load(std::memory_order_relaxed),
                           .end_ns = entry.end_ns.load(std::memory_order_relaxed)});
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    // The writer may be at the entry that comes next, in the place of one a whole log before.
    const std::uint64_t now = log.count.load(std::memory_order_relaxed);
    std::erase_if(entries, [now](const Entry& entry) { return now - entry.number >= TakeLog::kEntries; });
    return entries;
}

}  // namespace

void RankTime::Shortest::add(std::int64_t time_ns) {
    in_window_ns = std::min(in_window_ns, time_ns);
    if (++count < kWindow) return;
    before_ns = in_window_ns;
    in_window_ns = kNone_ns;
    count = 0;
}

std::int64_t RankTime::Shortest::value() const {
    return std::min(in_window_ns, before_ns);
}

void RankTime::end() {
    busy_ns_ += std::clamp<std::int64_t>(reported_ns_ - counted_ns_, 0, own_left_ns_);
    own_left_ns_ = 0;
}

void StepTime::look(std::span<const Rank> ranks, std::int64_t now_ns) {
    std::int64_t end_ns = now_ns;
    for (const Rank& rank : ranks) {
        begin(rank, now_ns);
        if (!rank.time->has_begun_ || rank.time->has_other_clock_) continue;
        if (until_ns_ == 0) until_ns_ = rank.time->counted_ns_;
        if (looked_ns_ == 0) until_ns_ = std::min(until_ns_, rank.time->counted_ns_);
        if (rank.report.knows_waits_at_report)
            end_ns = std::min(end_ns, std::max(rank.report.reported_ns, now_ns - kLateMax_ns));
    }
    end_ns = std::max(end_ns, until_ns_);
    waits_.clear();
    std::int64_t shortest_ns = kNone_ns;
    for (const Rank& rank : ranks) {
        if (!rank.time->has_begun_ || rank.time->has_other_clock_) continue;
        take_log(rank, end_ns);
        shortest_ns = std::min(shortest_ns, rank.time->shortest_.value());
    }
    unite();
    std::int64_t late_ns = 0;
    std::int64_t counted = 0;
    for (const Rank& rank : ranks) {
        if (!rank.time->has_begun_) continue;
        count(rank, end_ns, shortest_ns);
        if (rank.time->has_other_clock_) continue;
        ++counted;
        late_ns += std::clamp<std::int64_t>(end_ns - rank.time->counted_ns_, 0, kPeriodMax_ns);
    }
    if (until_ns_ == 0) return;
    counted_ns_ = end_ns - (counted == 0 ? 0 : late_ns / counted);
    remember(end_ns);
    shortest_ns_ = shortest_ns == kNone_ns ? 0 : shortest_ns;
    waited_ns_ += waited_until(end_ns);
    until_ns_ = end_ns;
    looked_ns_ = now_ns;
}

RecentWaits StepTime::recent() const {
    return {.since_ns = recent_since_ns_,
            .until_ns = until_ns_,
            .counted_ns = counted_ns_,
            .batches = batches_,
            .shortest_ns = shortest_ns_,
            .waits = {recent_.begin(), recent_.end()}};
}

void StepTime::remember(std::int64_t end_ns) {
    if (recent_since_ns_ == 0) recent_since_ns_ = until_ns_;
    for (const Wait& wait : waits_) {
        if (!recent_.empty() && recent_.back().end_ns == wait.begin_ns) {
            recent_.back().end_ns = wait.end_ns;
        } else {
            recent_.push_back(wait);
        }
    }
    while (!recent_.empty() && (recent_.size() > kRecentMax || recent_.front().end_ns < end_ns - kRecent_ns)) {
        recent_since_ns_ = recent_.front().end_ns;
        recent_.pop_front();
    }
    recent_since_ns_ = std::max(recent_since_ns_, end_ns - kRecent_ns);
}

// Begins to count the rank if it is new, and takes over what it reports.
void StepTime::begin(const Rank& rank, std::int64_t now_ns) const {
    RankTime& time = *rank.time;
    const RankReport& report = rank.report;
    if (report.reported_ns <= 0) return;
    const bool is_new = report.reported_ns != time.reported_ns_;
    const bool is_early = time.has_begun_ && report.reported_ns < looked_ns_ - kClockSlack_ns;
    if (is_new && (is_early || report.reported_ns > now_ns + kClockSlack_ns)) time.has_other_clock_ = true;
    if (!time.has_begun_) {
        time.has_begun_ = true;
        const std::int64_t waits_ns = report.waiting_since_ns > 0 ? report.reported_ns - report.waiting_since_ns : 0;
        const std::int64_t open_ns = std::max<std::int64_t>(0, waits_ns);
        const std::int64_t began_ns = report.reported_ns - report.busy_ns - report.stall_ns - open_ns;
        time.counted_ns_ = std::clamp(began_ns, std::min(until_ns_, now_ns), now_ns);
        time.waited_ns_ = waited_ns_;
    }
    time.reported_ns_ = report.reported_ns;
    time.own_left_ns_ += std::max<std::int64_t>(0, report.busy_ns - time.own_busy_ns_);
    time.own_busy_ns_ = std::max(time.own_busy_ns_, report.busy_ns);
}

// Takes the rank's waits up to `end_ns`, and the times between its batches.
void StepTime::take_log(const Rank& rank, std::int64_t end_ns) {
    RankTime& time = *rank.time;
    const auto take_wait = [&](std::int64_t from_ns, std::int64_t to_ns) {
        const Wait wait{.begin_ns = std::max(from_ns, until_ns_), .end_ns = std::min(to_ns, end_ns)};
        if (wait.begin_ns < wait.end_ns) waits_.push_back(wait);
    };
    // Read before the log, so that a wait that ends meanwhile is found here or there.
    if (rank.report.waiting_since_ns > 0) take_wait(rank.report.waiting_since_ns, end_ns);
    const std::vector<Entry> entries = entries_of(*rank.report.takes);
    const Entry* before = nullptr;
    for (const Entry& entry : entries) {
        take_wait(entry.begin_ns, entry.end_ns);
        if (before != nullptr && entry.number >= time.takes_seen_) {
            const auto between_ns = static_cast<std::int64_t>(static_cast<std::uint64_t>(entry.begin_ns) -
                                                              static_cast<std::uint64_t>(before->end_ns));
            time.shortest_.add(std::clamp<std::int64_t>(between_ns, 0, kPeriodMax_ns));
            ++time.takes_left_;
        }
        before = &entry;
    }
    if (!entries.empty()) time.takes_seen_ = entries.back().number + 1;
}

void StepTime::unite() {
    std::ranges::sort(waits_, {}, &Wait::begin_ns);
    std::size_t united = 0;
    for (const Wait& wait : waits_) {
        if (united > 0 && wait.begin_ns <= waits_[united - 1].end_ns) {
            waits_[united - 1].end_ns = std::max(waits_[united - 1].end_ns, wait.end_ns);
        } else {
            waits_[united++] = wait;
        }
    }
    waits_.resize(united);
}

std::int64_t StepTime::waited_until(std::int64_t end_ns) const {
    std::int64_t waited_ns = 0;
    for (const Wait& wait : waits_) {
        if (wait.begin_ns >= end_ns) break;
        waited_ns += std::min(wait.end_ns, end_ns) - wait.begin_ns;
    }
    return waited_ns;
}

void StepTime::count(const Rank& rank, std::int64_t end_ns, std::int64_t shortest_ns) {
    RankTime& time = *rank.time;
    if (time.has_other_clock_) {
        time.busy_ns_ += std::exchange(time.own_left_ns_, 0);
        return;
    }
    const std::int64_t from_ns = time.counted_ns_;
    const std::int64_t waited_before_ns = from_ns < until_ns_ ? time.waited_ns_ : waited_ns_ + waited_until(from_ns);
    const std::int64_t to_ns = std::min(rank.report.reported_ns, end_ns);
    if (to_ns <= from_ns) {
        time.waited_ns_ = waited_before_ns;
        return;
    }
    const std::int64_t elapsed_ns = to_ns - from_ns;
    time.counted_ns_ = to_ns;
    time.waited_ns_ = waited_ns_ + waited_until(to_ns);
    const std::int64_t in_step_ns =
        time.busy_ns_ + std::max<std::int64_t>(0, elapsed_ns - (time.waited_ns_ - waited_before_ns));
    const std::int64_t batches = std::exchange(time.takes_left_, 0);
    batches_ += static_cast<std::uint64_t>(batches);
    const std::int64_t tolerated_ns = shortest_ns == kNone_ns ? 0 : kToleratedBatches * shortest_ns;
    const std::int64_t least_ns =
        shortest_ns == kNone_ns ? 0 : std::max(time.least_ns_, time.busy_ns_ - tolerated_ns) + batches * shortest_ns;
    const std::int64_t most_ns = time.busy_ns_ + std::min(time.own_left_ns_, elapsed_ns);
    const std::int64_t before_ns = std::exchange(time.busy_ns_, std::min(std::max(in_step_ns, least_ns), most_ns));
    time.own_left_ns_ = to_ns == rank.report.reported_ns ? 0 : time.own_left_ns_ - (time.busy_ns_ - before_ns);
    time.least_ns_ = std::min(least_ns, time.busy_ns_ + tolerated_ns);
}

}  // namespace larder::cache
