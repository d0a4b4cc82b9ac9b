// The ring of events: what it keeps, what it leaves out, and how a reader resumes.

#include "allocator/service/events.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/test_units.h"

namespace larder::allocator {

using test::kSecond_ns;
namespace {

std::vector<std::string> messages(const std::vector<Event>& events) {
    std::vector<std::string> all;
    all.reserve(events.size());
    for (const Event& event : events) all.push_back(event.message);
    return all;
}
using Messages = std::vector<std::string>;

TEST(EventLog, ReaderResumesAfterLastEventItSaw) {
    EventLog log;
    EXPECT_TRUE(log.after(0).empty());
    EXPECT_EQ(log.first(), 1u);
    log.add(EventKind::node_came, "a", "one");
    log.add(EventKind::node_gone, "a", "two");
    EXPECT_EQ(messages(log.after(0)), (Messages{"one", "two"}));
    EXPECT_EQ(messages(log.after(1)), (Messages{"two"}));
    EXPECT_TRUE(log.after(2).empty());
    EXPECT_EQ(log.after(0)[1].number, 2u);
    EXPECT_EQ(log.after(0)[1].kind, EventKind::node_gone);
    EXPECT_GT(log.after(0)[0].unix_ms, 0);
}

TEST(EventLog, KeepsLatestEvents) {
    EventLog log(3);
    for (int i = 1; i <= 5; ++i) log.add(EventKind::job_seen, "j", std::to_string(i));
    EXPECT_EQ(messages(log.after(0)), (Messages{"3", "4", "5"}));
    EXPECT_EQ(messages(log.after(3)), (Messages{"4", "5"}));
    EXPECT_EQ(log.first(), 3u);
    EXPECT_EQ(log.last(), 5u);
    EXPECT_EQ(log.count(EventKind::job_seen), 5u);
}

TEST(EventLog, NumberFromBeforeRestartReturnsAllEvents) {
    EventLog log;
    log.add(EventKind::node_came, "a", "one");
    EXPECT_EQ(messages(log.after(900)), (Messages{"one"}));
}

TEST(EventLog, RepeatedEventIsLoggedSeldom) {
    EventLog log;
    for (int second = 0; second < 10; ++second) {
        log.add_seldom(EventKind::lease_cut, "a", "cut", second * kSecond_ns);
    }
    log.add_seldom(EventKind::lease_cut, "b", "of another", 5 * kSecond_ns);
    log.add_seldom(EventKind::report_refused, "a", "another kind", 5 * kSecond_ns);
    EXPECT_EQ(messages(log.after(0)), (Messages{"cut", "of another", "another kind"}));
    log.add_seldom(EventKind::lease_cut, "a", "cut", 10 * kSecond_ns);
    EXPECT_EQ(log.after(3).at(0).message, "cut (and 9 more since the last one)");
    log.add_seldom(EventKind::lease_cut, "a", "cut", 20 * kSecond_ns);
    EXPECT_EQ(log.after(4).at(0).message, "cut");
    EXPECT_EQ(log.count(EventKind::lease_cut), 13u) << "events that were left out are counted";
}

TEST(EventLog, EveryKindHasItsOwnName) {
    std::vector<std::string_view> names;
    names.reserve(kEventKinds);
    for (std::size_t i = 0; i < kEventKinds; ++i) names.push_back(name(static_cast<EventKind>(i)));
    EXPECT_EQ(names.front(), "node_came");
    EXPECT_EQ(names.back(), "node_undrained");
    std::ranges::sort(names);
    EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

}  // namespace
}  // namespace larder::allocator
