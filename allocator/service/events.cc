#include "allocator/service/events.h"

#include <algorithm>

#include "base/clock.h"

namespace larder::allocator {
namespace {

constexpr std::int64_t kQuiet_ns = 10'000'000'000;
// Subjects come from outside: at most this many are remembered, then all are forgotten.
constexpr std::size_t kQuietMax = 4096;

constexpr std::array<std::string_view, kEventKinds> kEventNames{
    "node_came",   "node_gone",    "job_registered", "job_removed",  "job_seen",       "job_gone",   "plan_changed",
    "pin_set",     "pin_released", "remote_set",     "lease_cut",    "report_refused", "job_placed", "job_submitted",
    "job_started", "job_stopped",  "job_ended",      "node_drained", "node_undrained",
};

}  // namespace

std::string_view name(EventKind kind) {
    return kEventNames[static_cast<std::size_t>(kind)];
}

void EventLog::add(EventKind kind, std::string subject, std::string message) {
    ++counts_[static_cast<std::size_t>(kind)];
    append(kind, std::move(subject), std::move(message));
}

void EventLog::add_seldom(EventKind kind, const std::string& subject, std::string message, std::int64_t now_ns) {
    ++counts_[static_cast<std::size_t>(kind)];
    if (quiet_.size() >= kQuietMax) quiet_.clear();
    const auto [found, first] = quiet_.try_emplace({kind, subject}, Quiet{.since_ns = now_ns});
    Quiet& quiet = found->second;
    if (!first) {
        if (now_ns - quiet.since_ns < kQuiet_ns) {
            ++quiet.left_out;
            return;
        }
        if (quiet.left_out > 0) message += " (and " + std::to_string(quiet.left_out) + " more since the last one)";
        quiet = {.since_ns = now_ns};
    }
    append(kind, subject, std::move(message));
}

void EventLog::append(EventKind kind, std::string subject, std::string message) {
    events_.push_back({.number = ++last_,
                       .unix_ms = unix_time_ns() / 1'000'000,
                       .kind = kind,
                       .subject = std::move(subject),
                       .message = std::move(message)});
    if (events_.size() > events_max_) events_.pop_front();
}

std::vector<Event> EventLog::after(std::uint64_t number) const {
    if (number > last_) number = 0;
    const std::uint64_t skipped = number < first() ? 0 : number + 1 - first();
    return {events_.begin() + static_cast<std::ptrdiff_t>(skipped), events_.end()};
}

}  // namespace larder::allocator
