#pragma once

// The events of the cluster, for operators: the last ones in a ring, each with a number that rises by one. A reader
// asks for the events after the last number it has seen. Numbers start over with the process, so a reader whose number
// is above the last one gets all events. One thread at a time.

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace larder::allocator {

enum class EventKind : std::uint8_t {
    node_came,
    node_gone,
    job_registered,
    job_removed,
    job_seen,
    job_gone,
    plan_changed,
    pin_set,
    pin_released,
    remote_set,
    lease_cut,
    report_refused,
    job_placed,  // another scheduler runs a registered job on a node, or no longer
    // The mounted scheduler, if any, records these about its jobs (extension.h).
    job_submitted,
    job_started,
    job_stopped,
    job_ended,
    // And these about its nodes.
    node_drained,
    node_undrained,
};
inline constexpr std::size_t kEventKinds = 19;

// Returns for example "node_came", as in JSON and in the label of the metric.
std::string_view name(EventKind kind);

struct Event {
    std::uint64_t number = 0;
    std::int64_t unix_ms = 0;
    EventKind kind = EventKind::node_came;
    std::string subject;  // the node, job or dataset it is about; may be empty
    std::string message;  // a sentence without its full stop
};

class EventLog {
public:
    explicit EventLog(std::size_t events_max = 1024) : events_max_(events_max) {}

    void add(EventKind kind, std::string subject, std::string message);
    // Adds an event that may repeat for long: of one kind and subject, only the first in ten seconds is kept. The next
    // one kept says how many were dropped.
    void add_seldom(EventKind kind, const std::string& subject, std::string message, std::int64_t now_ns);

    // Returns the events after `number`, oldest first. Events the ring has dropped are missing: see first().
    std::vector<Event> after(std::uint64_t number) const;
    std::uint64_t first() const { return last_ + 1 - events_.size(); }  // the oldest number kept; last() + 1 if none is
    std::uint64_t last() const { return last_; }
    // Returns the count of events of this kind, those dropped included.
    std::uint64_t count(EventKind kind) const { return counts_[static_cast<std::size_t>(kind)]; }

private:
    struct Quiet {
        std::int64_t since_ns = 0;
        std::uint64_t left_out = 0;
    };

    void append(EventKind kind, std::string subject, std::string message);

    std::size_t events_max_;
    std::uint64_t last_ = 0;
    std::deque<Event> events_;
    std::array<std::uint64_t, kEventKinds> counts_{};
    std::map<std::pair<EventKind, std::string>, Quiet> quiet_;
};

}  // namespace larder::allocator
