#pragma once

// Who may take how much of the remote right now. The allocator leases each node a rate for each of its jobs, for a
// while. A node that does not come back keeps what it was last given until its lease has expired, and its floor after
// that; so a new plan can be handed out only as fast as others give up what they had. The ledger keeps that account:
// whatever is lost, delayed or partitioned, the rates in force never add up to more than the remote's bandwidth. Pure
// bookkeeping: the caller says what time it is.

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace larder::allocator {

struct LeasedRate {
    std::string job;
    double bytes_per_second = 0;

    bool operator==(const LeasedRate&) const = default;
};

struct Lease {
    std::uint64_t number = 0;  // rises with every lease of the ledger
    std::int64_t expires_ns = 0;
    double floor_bytes_per_second = 0;  // of each job, once it has expired; for no job, of all that come meanwhile
    std::vector<LeasedRate> rates;
    // What was wanted could not be leased yet: ask again soon.
    bool cut = false;
    double wanted_bytes_per_second = 0;  // in all, floors included; known when it is made, not kept on record

    double sum() const;
    // What its node may take with it, and once it has expired.
    double in_force() const;
    double expired() const;
};

class LeaseLedger {
public:
    // A node whose lease has expired takes its lease's floor per job, shared by those that run then: this one, or less
    // where the remote is too slow for everybody's. A node without jobs has one, too, for those that start while it is
    // cut off: its part of a hundredth of the remote at most.
    LeaseLedger(double remote_bytes_per_second, double floor_bytes_per_second, std::int64_t duration_ns);

    // Only when `wait_ns` is 0: leases the node these rates in place of its last lease, or less where others still hold
    // what they need.
    Lease lease(const std::string& node, std::vector<LeasedRate> wanted, std::int64_t now_ns);
    // A node said that it has applied a lease. Until it does, both its last and its new lease count.
    void applied(const std::string& node, std::uint64_t number);
    // The node is gone for good: it was stopped, or removed by the operator.
    void remove(const std::string& node);
    // A lease that never left the allocator.
    void take_back(const std::string& node, std::uint64_t number);

    // After a restart. `held`: what may be in force on the node, as `held` gave it before.
    void restore(const std::string& node, std::vector<Lease> held);
    // What was leased before is not known, or by another clock: nothing is leased until then.
    void wait_until(std::int64_t until_ns) { wait_until_ns_ = until_ns; }
    // How long nothing can be leased yet.
    std::int64_t wait_ns(std::int64_t now_ns) const;
    // A node has a lease of this number: later ones must be above it.
    void number_above(std::uint64_t number);
    // What the node may be using: the last lease known to be applied, and all since.
    std::vector<Lease> held(const std::string& node) const;

    void set_remote(double bytes_per_second) { remote_ = bytes_per_second; }

    // What all nodes may be taking at this time.
    double in_force(std::int64_t now_ns) const;

private:
    struct Held {
        std::vector<Lease> leases;  // the last one known to be applied, and all since
    };
    // The most the node may be taking.
    static double held_by(const Held& held, std::int64_t now_ns);
    static void merge_expired(Held& held, std::int64_t now_ns);
    static void drop_superseded(Held& held, std::uint64_t applied);

    double remote_;
    double floor_;
    std::int64_t duration_ns_;
    std::uint64_t last_number_ = 0;
    std::int64_t wait_until_ns_ = std::numeric_limits<std::int64_t>::min();
    std::map<std::string, Held> nodes_;
};

}  // namespace larder::allocator
