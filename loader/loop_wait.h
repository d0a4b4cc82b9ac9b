#pragma once

// How long the training loop waits for data and how long it does not, as its session tells the daemon. The loop is the
// caller itself, or runs in another process and shares its waits (TrainingLoopWait), or is not known here at all. What
// is told holds at the moment of the report: a loop whose report is late has neither waited nor worked since, so what
// is made of reports (a job's f*) does not lean to either side. Not thread-safe; times are CLOCK_MONOTONIC's.

#include <cstdint>
#include <memory>

#include "loader/larder.h"

namespace larder::detail {

class LoopWait {
public:
    // Of one session, as running totals.
    struct Report {
        std::int64_t stall_ns = 0;          // in waits that are over
        std::int64_t waiting_since_ns = 0;  // 0: it does not wait
        std::int64_t busy_ns = 0;           // since the session's first report
        std::uint32_t training_loops = 0;   // 0: nobody here knows the loop
    };

    void begin(std::int64_t now_ns);
    // How long the wait was; 0 when there was none.
    std::int64_t end(std::int64_t now_ns);
    // The loop runs elsewhere from now on; null: it is for another session to report.
    void follow(std::shared_ptr<const TrainingLoopWait> loop);
    // What was before is not this session's to report.
    void begin_session();
    Report report(std::int64_t now_ns);

private:
    struct Waits {
        std::int64_t waited_ns = 0;
        std::int64_t since_ns = 0;
    };
    Waits waits() const;

    Waits own_;
    bool elsewhere_ = false;
    std::shared_ptr<const TrainingLoopWait> loop_;
    std::int64_t waited_before_ns_ = 0;           // before the session
    std::int64_t first_report_ns_ = 0;            // 0: none yet
    std::int64_t waited_at_first_report_ns_ = 0;  // with what was under way
    std::int64_t busy_ns_ = 0;
};

}  // namespace larder::detail
