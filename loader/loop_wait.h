#pragma once

// Measures the time that the training loop waits for data, and its other time. Its session reports both to the daemon.
// The loop is the caller itself, or runs in another process and shares its waits (TrainingLoopWait), or is unknown
// here. A report holds at the moment it is made. If the next one is late, the time in between does not count as waiting
// or working yet, so figures made of reports (a job's f*) have no bias. Not thread-safe; times are CLOCK_MONOTONIC's.

#include <cstdint>
#include <memory>

#include "loader/larder.h"

namespace larder::detail {

class LoopWait {
public:
    // Running totals of one session.
    struct Report {
        std::int64_t stall_ns = 0;          // in finished waits
        std::int64_t waiting_since_ns = 0;  // 0: not waiting
        std::int64_t busy_ns = 0;           // since the session's first report
        std::uint32_t training_loops = 0;   // 0: the loop is unknown here
        bool loop_is_elsewhere = false;
    };
    // A finished wait, perhaps of no length.
    struct Taken {
        std::int64_t begin_ns = 0;
        std::int64_t end_ns = 0;
    };

    void begin(std::int64_t now_ns);
    // The caller takes a batch now. Returns the wait before that.
    Taken end(std::int64_t now_ns);
    // From now on the loop runs in another process. Null: another session reports its waits, or nobody knows them.
    // `takes`: the batches that it takes; null: unknown.
    void follow(std::shared_ptr<const TrainingLoopWait> loop, std::shared_ptr<const protocol::TakeLog> takes = nullptr);
    // Begins a session. Its reports leave out earlier waits.
    void begin_session();
    Report report(std::int64_t now_ns);
    // The time in finished waits of the session, as in a report.
    std::int64_t stall_ns() const;
    bool runs_here() const { return !loop_runs_elsewhere_; }
    // Copies the batches that a loop in another process has taken since the last call in this session.
    void copy_takes(protocol::TakeLog& into);

private:
    struct Waits {
        std::int64_t waited_ns = 0;
        std::int64_t since_ns = 0;
    };
    Waits waits() const;

    Waits own_;
    bool loop_runs_elsewhere_ = false;
    std::shared_ptr<const TrainingLoopWait> loop_;
    std::shared_ptr<const protocol::TakeLog> loop_takes_;
    std::int64_t waited_before_ns_ = 0;           // before the session
    std::int64_t first_report_ns_ = 0;            // 0: none yet
    std::int64_t waited_at_first_report_ns_ = 0;  // including the wait in progress
    std::int64_t busy_ns_ = 0;
    std::uint64_t next_take_ = 0;  // in the log of the loop
};

}  // namespace larder::detail
