#pragma once

// The work of one job on its nodes, in intervals that have each node, from which its f* is measured (ideal_rate.h).
//
// A node counts the time as busy in which none of its own ranks waits for data (cache/shard/step_time.h). If the ranks
// work in step with others on other nodes, each node reports its waits too, and here the waits of all nodes are united:
// a node is busy while no node waits. Each time is turned into the allocator's by the least delay of the node's recent
// reports, so clocks need not agree. The error is the difference between the least delays of two nodes, a millisecond
// or less in most networks, once a step.
//
// Ranks that do not wait for each other in each step do work while others wait. So a node's busy time is never below
// the number of its batches times the shortest time that a rank of any node lately needed for one, nor above what the
// node says itself.
//
// A node's work is counted once the waits of the other nodes are known for its time. An interval is whole if it has
// each node. A node that has been silent for kSilent_ns is left out. All values are a node's word: they can make the f*
// of its own job wrong, and nothing else. Single-threaded; reads no clock.

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "allocator/ideal_rate.h"
#include "allocator/protocol/node_report.h"

namespace larder::allocator {

// Turns a node's times into the allocator's.
class NodeClock {
public:
    // Takes a report that was made at `node_us` and came at `now_ns`.
    void add(std::uint64_t node_us, std::int64_t now_ns);
    std::int64_t at_ns(std::uint64_t node_us) const;

private:
    // The least of the last one to two windows. Clocks may drift apart by a millisecond in a window.
    std::int64_t window_ns_ = std::numeric_limits<std::int64_t>::min();
    std::int64_t least_ns_ = 0;
    std::int64_t before_ns_ = 0;
};

class JobWork {
public:
    static constexpr std::int64_t kSilent_ns = 5'000'000'000;

    // A node reports these beside its counters.
    struct Waits {
        const WaitsReport* report = nullptr;  // null: its ranks wait for no other node's
        const NodeClock* clock = nullptr;
    };

    // The node reports the job for the first time, or its counters began anew.
    void begin(const std::string& node, Waits waits, std::int64_t now_ns);
    // Adds what the node did since its last report. begin() came before.
    void add(const std::string& node, const IdealRate::Interval& work, Waits waits, std::int64_t now_ns);
    void leave(const std::string& node) { nodes_.erase(node); }
    // Returns the next whole interval; nullopt if there is none yet.
    std::optional<IdealRate::Interval> take(std::int64_t now_ns);

private:
    struct Wait {
        std::int64_t begin_ns = 0;
        std::int64_t end_ns = 0;
    };
    // Waits in order that do not overlap, of the last minute.
    class WaitSum {
    public:
        void add(Wait wait);
        // The time in all waits up to then.
        std::int64_t until(std::int64_t at_ns) const;
        void drop_old(std::int64_t now_ns);

    private:
        struct Item {
            Wait wait;
            std::int64_t before_ns = 0;  // the time in all waits before
        };
        std::deque<Item> items_;
    };
    // Work that may still be less than it seems.
    struct Piece {
        IdealRate::Interval work;
        bool is_in_step = false;
        std::int64_t from_ns = 0;
        std::int64_t to_ns = 0;
        std::int64_t waited_ns = 0;  // by the node's own ranks
        double batches = 0;
    };
    struct Node {
        std::int64_t heard_ns = 0;
        bool is_in_step = false;
        std::int64_t until_ns = 0;    // its waits are known up to then
        std::int64_t counted_ns = 0;  // and its busy time
        std::uint64_t batches = 0;    // as last reported
        double shortest_s = 0;        // 0: unknown
        double owed_s = 0;            // the least that it was busy, minus what was counted
        WaitSum own;
        std::deque<Wait> waits;  // not yet united
        std::deque<Piece> pieces;
        std::optional<IdealRate::Interval> done;
    };

    // Takes over what the node reports of its waits since those known before.
    static void take_waits(Node& node, Waits waits, std::int64_t now_ns);
    void unite(std::int64_t now_ns);
    void count(Node& node, const Piece& piece, double shortest_s) const;

    std::map<std::string, Node> nodes_;
    WaitSum united_;
    std::int64_t united_until_ns_ = std::numeric_limits<std::int64_t>::min();
    std::int64_t looked_ns_ = 0;
    bool may_be_whole_ = false;  // an interval, because work was counted
};

}  // namespace larder::allocator
