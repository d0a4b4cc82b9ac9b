#pragma once

// The allocator's view of the cluster and its plan in force, as one object without a clock, a socket or a file:
// reports, registrations and the operator's wishes go in, every node's part of the plan comes out. The daemon, and
// simulations of it, drive it from one thread and say what time it is.
//
// Everything that must survive the process is handed out, before it counts, to who keeps it (`save_with`), and taken
// back at the next start (`restore`). Then the plan is the one that was in force, with its number, and what had been
// leased is still accounted for; nodes need not report first.
//
// A node that has not been heard of for as long as a lease lasts is gone: its cache and its jobs are planned without,
// and what it may still take is accounted for by the ledger. A job needs no registration; registering one declares what
// cannot be measured (weight, epochs, GPUs) or is not measured yet (f*).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "allocator/assign.h"
#include "allocator/ideal_rate.h"
#include "allocator/job_spec.h"
#include "allocator/lease_ledger.h"
#include "allocator/plan.h"
#include "allocator/record.h"
#include "allocator/report.h"
#include "base/error.h"

namespace larder::allocator {

struct ClusterOptions {
    double remote_bytes_per_second = 0;
    double floor_bytes_per_second = 1 << 20;  // of a job on a node whose lease has expired
    std::int64_t lease_ns = 10'000'000'000;
    std::int64_t same_name_after_ns = 3'000'000'000;  // a node's name is free again after so much silence
    Objective objective{.spare_room = true, .place_jobs = false};
    std::size_t nodes_max = 10'000;  // heard of; one more makes that forgotten which is silent the longest
    std::size_t jobs_max = 100'000;  // registered
};

// A job that takes turns with others, as its scheduler has it.
struct Turn {
    std::string job;
    double time_share = 1;  // the part of the time that it runs; above 0, up to 1
    // For while no node reports it, as when it waits for its next turn: what it reads, for how many epochs to go and
    // how fast (f* with the GPUs it had; 0: not known), and where it ran last (node, GPUs).
    std::string dataset;
    double epochs = kUnlimited;
    double ideal_bytes_per_second = 0;
    double weight = 1;
    std::vector<std::pair<std::string, std::uint32_t>> ran_on;
};

class Cluster {
public:
    // Keeps a change before it counts; an error refuses what was asked.
    using Save = std::function<Result<void>(const ClusterRecord& change)>;

    explicit Cluster(const ClusterOptions& options);

    void save_with(Save save) { save_ = std::move(save); }
    // Takes up what was kept; times in it are by the clock that gives `now_ns`. Nodes of the plan count as alive for
    // now. An error: all but the plan was taken up, and the next one will be new.
    Result<void> restore(const ClusterRecord& record, std::int64_t now_ns);

    // Takes a node's report whole, or not at all: invalid_argument names the field; already_exists when another daemon
    // of this name was heard of just now.
    Result<void> report(const NodeReport& report, std::int64_t now_ns);

    // The node is gone for good: its floors, which it could go on taking, count no longer. changed: it still reports,
    // or its lease is not over; not_found: nothing is known of it.
    Result<void> remove_node(const std::string& node, std::int64_t now_ns);

    Result<void> register_job(const JobSpec& spec);
    Result<void> remove_job(const std::string& name);
    // All jobs that take turns, in place of those said before; of no job twice. Who runs is what nodes report. Not kept
    // over a restart: the scheduler says it anew.
    void set_turns(std::vector<Turn> turns);
    // Fixes a dataset's quota over all nodes; nothing: lets the plan decide again. no_space when the pins do not fit.
    Result<void> pin_quota(const std::string& dataset, std::optional<std::uint64_t> bytes, std::int64_t now_ns);
    Result<void> set_remote(double bytes_per_second);

    // Makes the plan anew from what is known now. The number of the plan in force, which rises when it changed.
    Result<std::uint64_t> replan(std::int64_t now_ns);
    // The node's part of the plan in force, with a new lease. not_found: it has not reported; unavailable: nothing can
    // be leased yet, see `restore`.
    Result<NodePlan> plan_for(const std::string& node, std::int64_t now_ns);

    // What assign() is given, and what it gave; by the same indices.
    ClusterState state(std::int64_t now_ns) const;
    const ClusterState& planned_state() const { return planned_state_; }
    const Plan& plan() const { return plan_; }
    // A node's index there; nothing: the plan in force is without it.
    std::optional<std::uint32_t> planned_index(const std::string& node) const;
    // Of a registered job, with the current one: what was declared, less those it has been seen to finish since.
    double remaining_epochs(const std::string& job) const;
    // f* as measured; nothing when there is no measurement yet.
    std::optional<double> measured_ideal(const std::string& job) const;
    // What there is to show of it; references hold until the next call that changes something.
    struct KnownNode {
        NodeReport last;
        std::int64_t heard_ns = 0;
        std::uint64_t instance_before = 0;  // that it was started again after; 0: it was not
    };
    const std::map<std::string, KnownNode>& nodes() const { return nodes_; }
    bool is_alive(const KnownNode& node, std::int64_t now_ns) const;
    const JobSpec* registered(const std::string& job) const;  // null: it is not
    std::vector<std::string> registered_jobs() const;         // by name
    const std::map<std::string, std::uint64_t>& pins() const { return pins_; }
    // What all registered jobs together must have of the remote.
    double floors_bytes_per_second() const { return floors_bytes_per_second_; }
    const ClusterOptions& options() const { return options_; }
    std::uint64_t plan_number() const { return plan_number_; }
    double in_force(std::int64_t now_ns) const { return ledger_.in_force(now_ns); }

private:
    // Of a job on a node, at the node's last report.
    struct Counters {
        std::uint64_t bytes = 0;
        double busy_s = 0;
        std::optional<std::uint32_t> epoch;
        bool go_on = true;  // false: of an earlier process
    };
    struct KnownJob {
        std::optional<JobSpec> spec;
        IdealRate ideal;
        std::optional<EpochsSeen> epochs;        // since it was registered
        std::map<std::string, Counters> before;  // by node, of all whose last report has the job
        // Since every node's last report was taken into `ideal`.
        IdealRate::Interval open;
        std::map<std::string, std::uint32_t> reported;  // ranks per node, in the open interval
    };

    static bool is_started_again(const KnownNode& node, const NodeReport& report);
    // `last`: what the node reported before; null: nothing.
    void measure(const NodeReport& report, const NodeReport* last, bool same_instance);
    void count_epochs(const std::string& name, KnownJob& job);
    // Registers it, or takes that back; what is summed over registered jobs follows.
    void set_spec(KnownJob& job, std::optional<JobSpec> spec);
    // The node's report no longer has the job.
    void leaves(const std::string& job, const std::string& node);
    void forget_unless_needed(const std::string& job);
    void forget_node(std::map<std::string, KnownNode>::const_iterator node);
    double ideal_of(const std::string& job) const;
    void count_lease_floors(ClusterState& state) const;
    void add_turns(ClusterState& state) const;
    // What a pin asks for at most: each peer group that has the dataset needs it once.
    static double pinned_bytes(const ClusterState& state, const Dataset& dataset, std::uint64_t pin);
    std::size_t scanning_nodes(std::int64_t now_ns) const;
    double grant_beside_scans(std::uint32_t job) const;
    double rate_for_scans(std::size_t scanning) const;
    double demand_of(const std::string& node, const std::string& job) const;
    using Quotas = std::map<std::string, std::vector<DatasetQuota>>;  // by node
    Quotas quotas() const;
    bool take_quotas(const ClusterRecord& record);
    void take_plan(ClusterState state, Plan plan);
    Result<void> save_plan(bool same_quotas);
    bool forget_a_silent_node(std::int64_t now_ns);
    // What has come since the last time, with `change`.
    Result<void> save(ClusterRecord change);

    const ClusterOptions configured_;
    ClusterOptions options_;
    LeaseLedger ledger_;
    Save save_;
    std::set<std::string> unsaved_nodes_;
    Quotas saved_quotas_;
    bool plan_unsaved_ = false;
    std::set<std::string> unsaved_jobs_;    // their measured rates
    std::set<std::string> unsaved_epochs_;  // by job
    std::map<std::string, KnownNode> nodes_;
    std::map<std::string, KnownJob> jobs_;
    std::size_t registered_ = 0;
    double floors_bytes_per_second_ = 0;
    std::map<std::string, std::uint64_t> pins_;
    std::vector<Turn> turns_;
    std::set<std::string> in_turns_;  // their jobs
    std::uint64_t plan_number_ = 0;
    ClusterState planned_state_;
    Plan plan_;
    // What is on each of its nodes, by index.
    std::vector<std::vector<std::uint32_t>> planned_jobs_;
    std::vector<std::vector<std::uint32_t>> planned_datasets_;
};

}  // namespace larder::allocator
