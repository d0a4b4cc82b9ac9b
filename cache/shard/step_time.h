#pragma once

// The busy time of the ranks of a data-parallel job. Such ranks work in step: while one of them waits for data, the
// others soon wait for that one. So a rank is busy while no rank of the job waits: the time of its reports, less the
// union of all ranks' waits. A job's f* is its bytes / this time (allocator/ideal_rate.h).
//
// Assumed: the sessions of the job on one dataset of this node that name a world of several ranks work in step.
// Sessions of one name that do not (readers that are independent of each other, or ranks that wait for each other only
// after many batches) do work while others wait, and the union would make their f* too high. So a rank's busy time is
// never below the number of its batches times the shortest time that any of the ranks lately needed for one. Ranks in
// step stay above that by themselves, because the rank whose data comes last in a step waits for no other. And no rank
// is busier than it says itself.
//
// Ranks on other nodes are not known here. A rank that waits for one of those counts as busy. The allocator gets the
// node's waits of the last seconds, and unites them with those of other nodes (allocator/job_work.h).
//
// A client may write anything into its log. A wait counts only from the last look on, and up to now. Single-threaded;
// reads no clock.

#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <vector>

#include "cache/protocol/take_log.h"

namespace larder::cache {

// The times of a rank, as its loader reports them.
struct RankReport {
    const protocol::TakeLog* takes = nullptr;
    std::int64_t reported_ns = 0;        // when; 0: not yet
    std::int64_t busy_ns = 0;            // of this rank alone, up to then
    std::int64_t stall_ns = 0;           // in finished waits
    std::int64_t waiting_since_ns = 0;   // 0: it does not wait
    bool knows_waits_at_report = false;  // else at any time
};

// The times of a rank that are counted.
class RankTime {
public:
    std::int64_t busy_ns() const { return busy_ns_; }
    bool has_begun() const { return has_begun_; }
    // The rank has ended. Counts what it has reported and is not counted yet.
    void end();

private:
    friend class StepTime;

    // The shortest of the last one to two windows of times between batches.
    struct Shortest {
        std::int64_t in_window_ns = std::numeric_limits<std::int64_t>::max();
        std::int64_t before_ns = std::numeric_limits<std::int64_t>::max();
        std::uint32_t count = 0;  // in the window

        void add(std::int64_t time_ns);
        std::int64_t value() const;  // the maximum if there were none
    };

    bool has_begun_ = false;
    bool has_other_clock_ = false;  // its times cannot be compared with those of other ranks
    std::int64_t counted_ns_ = 0;   // the time up to which busy_ns_ counts
    std::int64_t waited_ns_ = 0;    // StepTime::waited_ns_ then
    std::int64_t reported_ns_ = 0;  // as last seen
    std::int64_t own_busy_ns_ = 0;  // as last seen
    std::int64_t own_left_ns_ = 0;  // the part of it that was reported but is not counted yet
    std::int64_t least_ns_ = 0;     // busy_ns_ is at least this
    std::int64_t busy_ns_ = 0;
    std::uint64_t takes_seen_ = 0;  // entries of the log
    std::int64_t takes_left_ = 0;   // thereof, those not counted yet
    Shortest shortest_;
};

struct Wait {
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
};

// The union of the ranks' waits in the last seconds, and what a batch takes.
struct RecentWaits {
    std::int64_t since_ns = 0;
    std::int64_t until_ns = 0;
    std::int64_t counted_ns = 0;   // up to which the ranks' busy times count, on average
    std::uint64_t batches = 0;     // counter: taken by all ranks
    std::int64_t shortest_ns = 0;  // that any of the ranks lately needed for a batch; 0: unknown
    std::vector<Wait> waits;       // in order
};

class StepTime {
public:
    struct Rank {
        RankTime* time = nullptr;
        RankReport report;
    };
    // Counts the time since the last look. `ranks`: all those of the job at present.
    void look(std::span<const Rank> ranks, std::int64_t now_ns);
    // As of the last look.
    RecentWaits recent() const;

private:
    void begin(const Rank& rank, std::int64_t now_ns) const;
    void take_log(const Rank& rank, std::int64_t end_ns);
    void unite();
    // The time in waits from until_ns_ to `end_ns`.
    std::int64_t waited_until(std::int64_t end_ns) const;
    void count(const Rank& rank, std::int64_t end_ns, std::int64_t shortest_ns);
    void remember(std::int64_t end_ns);

    std::int64_t until_ns_ = 0;   // the time up to which waits are known; 0: no look yet
    std::int64_t waited_ns_ = 0;  // in the union of all waits up to then
    std::int64_t looked_ns_ = 0;
    std::vector<Wait> waits_;  // since until_ns_; scratch space of a look
    std::deque<Wait> recent_;
    std::int64_t recent_since_ns_ = 0;
    std::int64_t counted_ns_ = 0;
    std::uint64_t batches_ = 0;
    std::int64_t shortest_ns_ = 0;
};

}  // namespace larder::cache
