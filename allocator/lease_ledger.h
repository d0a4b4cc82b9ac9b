#pragma once

// Accounts for who may take how much of the remote right now. The allocator leases each node a rate for each of its
// jobs, for a while. A node that does not come back keeps its last rates until its lease expires, and its floor after
// that. So a new plan can be handed out only as fast as other nodes give up their rates. The ledger ensures that,
// whatever is lost, delayed or partitioned, the rates in force never add up to more than the remote's bandwidth. Pure
// bookkeeping: the caller passes the time.
//
// Leases outlive the allocator that granted them. So the most that each node may take under its leases is put on record
// before the node is told of them (`to_record`), and the allocator that takes over counts those rates as leased until
// they have expired. What is on record adds up to the remote's bandwidth at most, floors included, so the new allocator
// can renew each node's rates at once. A change that the next allocator can do without is recorded late, or not at all.

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "allocator/protocol/node_plan.h"

namespace larder::allocator {

// A node's rates as they are on record for the allocator that takes over.
struct RecordedRates {
    double bytes_per_second = 0;    // each of its leases that have not expired takes this at most
    std::vector<LeasedRate> rates;  // of its last lease, by job; they may add up to less; none if they are very many
    // The number of the state directory of the daemon that has them (node_report.h); 0: not known. Cluster fills it in.
    std::uint64_t state_directory = 0;

    bool operator==(const RecordedRates&) const = default;
};

class LeaseLedger {
public:
    // A node whose lease has expired takes the lease's floor per job, shared by the jobs that run then. The floor is
    // `floor_bytes_per_second`, or less if the remote is too slow for all floors. A node without jobs has a floor, too,
    // for jobs that start while the node is cut off: at most its part of a hundredth of the remote.
    LeaseLedger(double remote_bytes_per_second, double floor_bytes_per_second, std::int64_t duration_ns);

    // Leases the node these rates in place of its last lease, or less if other nodes still hold the bandwidth. Call it
    // only when `wait_ns` is 0. The lease's floor per job is at most `floor_max_bytes_per_second`. All its floors
    // together are at most `expired_max_bytes_per_second`.
    Lease lease(const std::string& node, std::vector<LeasedRate> wanted, std::int64_t now_ns,
                double floor_max_bytes_per_second = std::numeric_limits<double>::infinity(),
                double expired_max_bytes_per_second = std::numeric_limits<double>::infinity());
    // Notes that a node has applied a lease. Until then its last and its new lease both count.
    void applied(const std::string& node, std::uint64_t number);
    // Removes a node that is gone for good: it was stopped, or removed by the operator.
    void remove(const std::string& node);
    // Withdraws a lease that never left the allocator.
    void take_back(const std::string& node, std::uint64_t number);

    // Restores a node's leases after a restart: `held` is the result of held() before.
    void restore(const std::string& node, std::vector<Lease> held);
    // Makes wait_ns() positive until `until_ns`. For when earlier leases are unknown, or their times are by another
    // clock.
    void wait_until(std::int64_t until_ns) { wait_until_ns_ = until_ns; }
    // Returns the time until leases can be granted; 0 if they can now.
    std::int64_t wait_ns(std::int64_t now_ns) const;
    // Makes later lease numbers exceed `number`, which a node already has.
    void skip_numbers_up_to(std::uint64_t number);
    // Returns the leases the node may be using: the last one known to be applied, and all since.
    std::vector<Lease> held(const std::string& node) const;

    // --- the record

    using Records = std::map<std::string, std::optional<RecordedRates>>;  // by node; nullopt: no rates
    // Returns what has to be on record before the node is told of its last lease. This may include other nodes that
    // now take less than their records say. Empty if the record is good enough as it is.
    Records to_record(const std::string& node, std::int64_t now_ns);
    // Notes what was handed out to be written. Until `confirm`, a higher record may come to nothing.
    void recorded(const Records& records, std::int64_t now_ns);
    // Returns the rates that are on record for the node, as noted.
    double on_record(const std::string& node) const;
    // Notes that all higher records of the node that were handed out are written.
    void confirm(const std::string& node);
    // Notes that a record of the node may not have been written. Its leases then stay within the record that is known,
    // and need no other, for the length of a lease.
    void not_recorded(const std::string& node, std::int64_t now_ns);
    // Notes that the node's record may be higher than was noted: it is handed out again.
    void distrust_record(const std::string& node);
    // Returns nodes on record that have no lease any more.
    std::vector<std::string> records_without_lease(std::int64_t now_ns);
    bool has_record_without_lease(const std::string& node, std::int64_t now_ns);
    // Returns a lease that stands for all those of a record by another allocator. Its floors are on record for
    // themselves.
    static Lease carried_over(const RecordedRates& rates, std::int64_t until_ns);

    // Returns the bytes per second that the node may take once all these leases have expired.
    double expired(const std::string& node) const;

    void set_remote(double bytes_per_second) { remote_ = bytes_per_second; }

    // Returns the bytes per second that all nodes together may be taking at this time.
    double in_force(std::int64_t now_ns) const;

private:
    struct Held {
        std::vector<Lease> leases;  // the last one known to be applied, and all since
        double counted = 0;         // its part of counted_
        double leased = 0;          // the largest of its leases with rates that have not expired
        double expired = 0;         // the most that it may take once all have expired
        std::optional<RecordedRates> record;
        double confirmed = 0;  // at least this much is certainly on record
        bool is_record_known = true;
        double counted_next = 0;  // its part of on_record_
        double slack = 0;         // how much of that a lower record would free
        std::int64_t recorded_ns = std::numeric_limits<std::int64_t>::min();
        std::int64_t no_rise_until_ns = std::numeric_limits<std::int64_t>::min();
        std::int64_t recount_ns = std::numeric_limits<std::int64_t>::max();  // when `counted` is out of date

        double on_record() const { return record ? record->bytes_per_second : 0; }
    };
    using Nodes = std::map<std::string, Held>;
    // Call it when a node's leases have changed.
    void changed(Nodes::iterator node);
    void schedule_recount(Nodes::iterator node, std::int64_t at_ns);
    // Brings counted_ up to date. Costs as much as nodes have changed, or had leases expire, since the last call.
    void recount(std::int64_t now_ns);
    // Returns the most bytes per second that the node may be taking.
    static double held_by(const Held& held, std::int64_t now_ns);
    static double leased_by(const Held& held, std::int64_t now_ns);
    static double expired_of(const Held& held);
    static void merge_expired(Held& held, std::int64_t now_ns);
    static std::optional<RecordedRates> record_of(const Held& held);
    bool needs_record(const Held& held, std::int64_t now_ns) const;
    // Call it when a node's record, or what it takes, has changed.
    void update_slack(Nodes::iterator node);
    static void drop_superseded(Held& held, std::uint64_t applied);

    double remote_;
    double floor_;
    std::int64_t duration_ns_;
    std::uint64_t last_number_ = 0;
    std::int64_t wait_until_ns_ = std::numeric_limits<std::int64_t>::min();
    Nodes nodes_;
    double counted_ = 0;  // the bytes per second that all nodes may take, as of counted_ns_
    std::int64_t counted_ns_ = 0;
    std::size_t recounts_ = 0;                        // since counted_ was added up from nothing
    double on_record_ = 0;                            // the bytes per second that the next allocator would count
    std::set<std::pair<double, std::string>> slack_;  // the nodes whose slack is above 0
    // The nodes whose count goes out of date, by time.
    std::set<std::pair<std::int64_t, std::string>> recounts_due_;
};

}  // namespace larder::allocator
