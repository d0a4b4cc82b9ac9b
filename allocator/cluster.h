#pragma once

// The allocator's view of the cluster and its plan in force, as one object without a clock, a socket or a file.
// Reports, registrations and the operator's settings go in; every node's part of the plan comes out. The daemon, and
// simulations of it, drive it from one thread and pass the time.
//
// Cluster hands out everything that must survive the process, before it takes effect, to the owner's `set_save`
// function, and takes it back at the next start (`restore`). After that the plan in force has the same quotas and the
// same number, and earlier leases are still accounted for; nodes need not report first.
//
// A node that has not reported for the length of a lease counts as gone: plans leave out its cache and its jobs, and
// the ledger accounts for the bandwidth it may still take. Time in which no report could be taken is no silence
// (`excuse_silence`). A job needs no registration. Registering a job declares values that cannot be measured (weight,
// epochs, GPUs) or are not measured yet (f*).
//
// A job's name belongs to one user: the user with which it was registered, or else the first one for whom a node
// reports it, for as long as a node does. A report of the same name for another user is another job, named
// "NAME (user UID)" in plans and here. So nobody can take the rates, or forge the measurements, of another user's job.

#include <boost/unordered/unordered_flat_set.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "allocator/assign.h"
#include "allocator/cluster_record.h"
#include "allocator/ideal_rate.h"
#include "allocator/index_lists.h"
#include "allocator/job_work.h"
#include "allocator/lease_ledger.h"
#include "allocator/name_numbers.h"
#include "allocator/plan.h"
#include "allocator/protocol/job_registration.h"
#include "allocator/protocol/node_report.h"
#include "base/error.h"

namespace larder::allocator {

struct ClusterOptions {
    double remote_bytes_per_second = 0;
    double floor_bytes_per_second = 1 << 20;  // per job, on a node whose lease has expired
    std::int64_t lease_ns = 10'000'000'000;
    // Another daemon may take a node's name after so long a silence, once the node's leases have expired.
    std::int64_t same_name_after_ns = 3'000'000'000;
    Objective objective{.spare_room = true, .place_jobs = false};
    std::size_t nodes_max = 10'000;  // nodes remembered; one more node drops the one that has been silent the longest
    std::size_t jobs_max = 100'000;  // registered
    std::size_t jobs_per_owner_max = 1000;  // registered by one user or token who is no operator
    // The etags of lists of peers count up from here. A node may name one of an earlier allocator, so each allocator
    // should have a range of its own.
    std::uint64_t peers_etags_above = 0;
};

// A job that takes turns with others, as its scheduler reports it.
struct Turn {
    std::string job;
    double time_share = 1;  // the part of the time that the job runs; above 0, up to 1
    // Used while no node reports the job, for example while it waits for its next turn: its dataset, its epochs to go,
    // its rate (f* with the GPUs it had; 0: not known), and the nodes and GPUs it ran on last.
    std::string dataset;
    double epochs = kUnlimited;
    double ideal_bytes_per_second = 0;
    double weight = 1;
    std::vector<std::pair<std::string, std::uint32_t>> ran_on;
};

// Splits `grant`, a job's remote bandwidth (bytes per second), by the demands of the nodes that the job runs on. Each
// node gets at least `floor`, or an equal part if the floors exceed the grant, so that a node of unknown demand has the
// bandwidth to show its demand. The rest is filled up to the demands, the smallest first (water-filling). Any bandwidth
// still left goes to all nodes in equal parts. The sum is the grant. Demands are finite and not negative. Returns an
// empty vector if there is no node.
std::vector<double> split_grant(double grant, std::span<const double> demands, double floor);

class Cluster {
    struct KnownJob;

public:
    // Saves a change before it takes effect. An error refuses the request.
    using Save = std::function<Result<void>(const ClusterRecord& change)>;

    explicit Cluster(const ClusterOptions& options);
    Cluster(const Cluster&) = delete;  // nodes point to jobs
    Cluster& operator=(const Cluster&) = delete;

    // `with_rates`: changes have the rates for an allocator that takes over without the leases (ClusterRecord::rates).
    void set_save(Save save, bool with_rates = false) {
        save_ = std::move(save);
        saves_rates_ = with_rates;
    }
    // Takes up a saved record, whose times are by the clock that gives `now_ns`. Nodes of the plan have a whole lease
    // to report. On an error everything but the plan was taken up, and the next plan will be new.
    Result<void> restore(const ClusterRecord& record, std::int64_t now_ns);

    // Takes a node's whole report, or nothing. nodes() then has it with jobs named as above. Errors: invalid_argument
    // names the field; already_exists if another daemon of this name has just reported, or may hold leases.
    Result<void> report(const NodeReport& report, std::int64_t now_ns);

    // Tells that for `pause_ns` no report could be taken, because the owner was stopped or busy. Nodes that were alive
    // before get this much more time to report. Leases expire all the same.
    void excuse_silence(std::int64_t pause_ns) { excused_ns_ += pause_ns; }

    // Removes a node for good: the floors that it could still take no longer count. Errors: changed if the node still
    // reports or its lease has not expired; not_found if the node is unknown.
    Result<void> remove_node(const std::string& node, std::int64_t now_ns);

    // A registration with an owner may have no floor and no weight above 1, and its name must not be in use by another
    // user. One without an owner takes the name from any user. Errors: invalid_argument; permission_denied;
    // already_exists; no_space if too many jobs are registered, or too many of the owner's.
    Result<void> register_job(const JobRegistration& spec);
    Result<void> remove_job(const std::string& name);
    // Like remove_job, for a job of which the caller knows that it has ended, or waits for its next turn. Nodes go on
    // reporting it for some seconds; it counts in no plan as running unless it reads again.
    Result<void> remove_ended_job(const std::string& name);
    // Checks that the job's dataset is known, and that the cache which it reserves (JobRegistration::cache_bytes) is
    // free. Call it before register_job. Errors: not_found; no_space.
    Result<void> check_reservation(const JobRegistration& spec, std::int64_t now_ns) const;
    // Changes what a registered job reserves: cache of its dataset, and bandwidth; and the nodes where it is expected
    // to start (JobRegistration::expected_on, in any order). After an error it has what it had. Saves nothing if
    // nothing changes. Errors: not_found if the job is not registered; invalid_argument; no_space; unavailable while no
    // node has the dataset.
    Result<void> reserve_for_job(const std::string& name, std::uint64_t cache_bytes,
                                 double bandwidth_floor_bytes_per_second, std::int64_t now_ns,
                                 std::vector<std::string> expected_on = {});
    // Notes that another scheduler runs the registered job on the node, on so many GPUs; nullopt: no longer. The job
    // counts in plans from now on, if its dataset is declared or it reads. Errors: not_found if the job is not
    // registered.
    Result<void> place_job(const std::string& name, const std::string& node, std::optional<std::uint32_t> gpus);
    // Replaces the set of all jobs that take turns; `turns` has each job at most once. Nodes' reports say which of them
    // run. Turns do not survive a restart: the scheduler sends them again.
    void set_turns(std::vector<Turn> turns);
    // Pins a dataset's quota over all nodes; nullopt lets the plan decide again. Error: no_space if the pins do not
    // fit.
    Result<void> pin_quota(const std::string& dataset, std::optional<std::uint64_t> bytes, std::int64_t now_ns);
    // Returns the error that pin_quota() would return for lack of room, or for an unknown dataset.
    Result<void> check_pin(const std::string& dataset, std::uint64_t bytes, std::int64_t now_ns) const;
    // Sets the remote's bandwidth, which must be above 0. Error: invalid_argument if the jobs' floors do not fit it.
    Result<void> set_remote(double bytes_per_second);
    Result<void> reset_remote() { return set_remote(configured_.remote_bytes_per_second); }

    // Makes a new plan from the present state. Returns the number of the plan in force, which rises when it changed.
    Result<std::uint64_t> replan(std::int64_t now_ns);
    // Returns the node's part of the plan in force, with a new lease; without the list of peers if its etag is
    // `known_peers_etag`. Errors: not_found if the node has not reported; unavailable if nothing can be leased yet (see
    // `restore`).
    Result<NodePlan> plan_for(const std::string& node, std::int64_t now_ns,
                              std::optional<std::uint64_t> known_peers_etag = std::nullopt);
    // Withdraws a lease whose node was not told of it, because its floor or its rates could not be saved. The node's
    // next leases stay within the rates that are known to be saved, until another attempt is due.
    void withdraw_lease(const std::string& node, std::uint64_t number, std::int64_t now_ns);
    // Notes that all floors and rates of the node that were handed out so far are saved for good.
    void confirm_promises(const std::string& node);

    // The input of assign(), and its output; both have the same indices.
    ClusterState state(std::int64_t now_ns) const;
    const ClusterState& planned_state() const { return planned_state_; }
    const Plan& plan() const { return plan_; }
    const Objective& objective() const { return options_.objective; }
    // Returns a node's index in planned_state(); nullopt if the plan in force does not include the node.
    std::optional<std::uint32_t> planned_index(const std::string& node) const;
    // Returns a registered job's remaining epochs, the current one included: the declared epochs less those that nodes
    // reported as finished.
    double remaining_epochs(const std::string& job) const;
    // Returns f* as measured; nullopt if there is no measurement yet.
    std::optional<double> measured_ideal(const std::string& job) const;
    // The remaining calls show the state. References stay valid until the next call that changes something.
    struct KnownNode {
        NodeReport last;
        std::int64_t heard_ns = 0;
        std::int64_t excused_ns = 0;          // the sum of all pauses up to then
        bool is_restored = false;             // not heard since the allocator's restart; heard_ns is the restart's time
        std::uint64_t previous_instance = 0;  // the daemon before the last restart; 0: no restart seen
        std::int64_t noted_ns = 0;            // when `last` was last noted for the record
        std::uint64_t peer_number = 0;        // a new one for each name and endpoint that its peers are told
        NodeClock clock;
        // The jobs of `last`, in the same order. Each is in jobs_ as long as its last_counters have this node, thus
        // until the node reports other jobs or is forgotten.
        std::vector<KnownJob*> jobs;
        // The numbers of the datasets of `last`, in the same order, and of the datasets of its jobs. kNoNumber: the
        // report does not list the dataset, which only a damaged record can do.
        std::vector<std::uint32_t> datasets;
        std::vector<std::uint32_t> datasets_of_jobs;

        // state() goes over tens of thousands of reports and jobs that lie anywhere in memory. This loads those of a
        // node in advance, so that state() need not wait for them.
        void load_ahead() const;
    };
    const std::map<std::string, KnownNode>& nodes() const { return nodes_; }
    bool is_alive(const KnownNode& node, std::int64_t now_ns) const;
    const JobRegistration* registered(const std::string& job) const;  // null: not registered
    std::vector<std::string> registered_jobs() const;                 // by name
    // Returns the user whom the job's name belongs to; nullopt: nobody, or unknown.
    std::optional<std::uint32_t> user_of(const std::string& job) const;
    const std::map<std::string, std::uint64_t>& pins() const { return pins_; }
    // True if the cache that the registered job reserves is filled as far as its nodes' quotas allow.
    bool is_staged(const JobRegistration& job) const;
    // Returns the sum of all registered jobs' bandwidth floors.
    double floors_bytes_per_second() const { return floors_bytes_per_second_; }
    const ClusterOptions& options() const { return options_; }
    std::uint64_t plan_number() const { return plan_number_; }
    // Returns the remote bytes per second that all nodes together may be taking.
    double in_force(std::int64_t now_ns) const { return ledger_.in_force(now_ns); }

private:
    // The least demand of the last one to two windows.
    struct RecentDemand {
        std::int64_t window_ns = 0;  // when the newest window began
        double least = kUnlimited;   // in the newest window
        double least_before = kUnlimited;

        void add(double bytes_per_second, std::int64_t now_ns);
    };
    // A job's counters on a node, from the node's last report.
    struct Counters {
        std::uint64_t bytes = 0;
        double busy_s = 0;
        std::optional<std::uint32_t> epoch;
        bool comparable = true;  // false: only the epoch is known, from before the allocator's restart
        RecentDemand demand;
    };
    struct KnownJob {
        // The members that state() reads stand first, in few of the processor's cache lines.
        bool has_ended = false;             // it does not run, as its scheduler says
        std::optional<std::uint32_t> user;  // the name belongs to
        std::optional<EpochsSeen> epochs;   // since it was registered
        IdealRate ideal;
        std::optional<std::int64_t> unmeasured_since_ns;  // the first report since which `ideal` has no rate
        std::optional<JobRegistration> spec;
        std::map<std::string, Counters> last_counters;  // by node, for all nodes whose last report has the job
        JobWork work;                                   // not yet added to `ideal`
        // The nodes whose next report may still have reads from before the job stopped.
        std::set<std::string> to_settle;

        void load_ahead() const;  // see KnownNode
    };

    // The nodes that read each other's caches.
    struct PeerGroup {
        std::map<std::string, const KnownNode*> nodes;
        std::vector<std::uint64_t> listed;  // their peer_number, as of the list with this etag
        std::uint64_t etag = 0;
    };

    // Adds the node to scanning_ as its report says, and numbers its datasets, or undoes that.
    void index(const std::string& name, KnownNode& node);
    void unindex(const std::string& name, const KnownNode& node);
    // Takes the node out of the group of its last report, and into `to`; empty: none. The group points to the node.
    void move_to_group(const std::string& name, const KnownNode& node, const std::string& to);
    // Returns the etag of the list of the group's nodes that are alive.
    std::uint64_t peers_etag(PeerGroup& group, std::int64_t now_ns);
    // Puts the node's peers into its part of a plan, or their etag alone if it is the known one.
    void put_peers(NodePlan& part, const KnownNode& node, std::optional<std::uint64_t> known_etag, std::int64_t now_ns);
    // Returns the name under which the cluster knows a job that a node reports.
    std::string known_name(const JobReport& reported) const;
    // Renames the jobs of this name in nodes' last reports, after it was given to another user.
    void rename_reported(const std::string& job);
    // Returns the rates that the node had from the allocator before this one, as long as those hold; null: none.
    const std::vector<LeasedRate>* carried_rates(const std::string& node, std::int64_t now_ns) const;
    void end_carry_over(std::int64_t now_ns);
    // Takes over the f* that the allocator before this one measured of the job.
    void take_carried_ideal(const std::string& name, KnownJob& job);
    // True if another daemon than the reporting one has the leases that the allocator before this one granted to the
    // node.
    bool is_of_other_daemon(const NodeReport& report, std::int64_t now_ns) const;
    static bool is_restart(const KnownNode& node, const NodeReport& report);
    // True if a daemon may still use the node's name or its leases.
    bool is_in_use(const KnownNode& node, std::int64_t now_ns) const;
    // Returns the jobs of the report. `last` is the node's report before this one; null if there was none.
    std::vector<KnownJob*> measure(const NodeReport& report, const NodeReport* last, bool same_instance,
                                   const NodeClock& clock, std::int64_t now_ns);
    void count_epochs(const std::string& name, KnownJob& job);
    // Checks the limits on registrations that no operator made.
    Result<void> check_owned(const JobRegistration& spec) const;
    Result<void> check_bandwidths(const JobRegistration& spec, double other_floors_bytes_per_second) const;
    // True if the job reserves cache and neither its scheduler nor a node says that it runs.
    static bool waits_for_cache(const KnownJob& job);
    // Every change of a job's registration, runs_on or last_counters goes through here: it keeps dataset_needs_ and
    // placed_ right.
    template <typename Change>
    void change_job(KnownJob& job, Change change) {
        count_needs(job, false);
        change();
        count_needs(job, true);
    }
    void count_needs(const KnownJob& job, bool add);
    // Registers the job, or unregisters it, and updates the sums over registered jobs.
    void set_spec(KnownJob& job, std::optional<JobRegistration> spec);
    // Called when the node's report no longer has the job.
    void job_left_node(const std::string& job, const std::string& node);
    void forget_unless_needed(const std::string& job);
    void forget_node(std::map<std::string, KnownNode>::const_iterator node);
    double ideal_of(const KnownJob* job) const;  // null: the job is not known
    static bool ideal_is_guess(const KnownJob& job, std::int64_t now_ns);
    static double remaining_epochs(const KnownJob& job);
    // `takes_leases`: by node of the state.
    void count_lease_floors(ClusterState& state, const std::vector<bool>& takes_leases) const;
    void add_turns(ClusterState& state) const;
    void add_placed_jobs(ClusterState& state, std::int64_t now_ns) const;
    static void declare(ClusterJob& job, const KnownJob& known);
    // Returns the largest reservation of the dataset; 0: none.
    std::uint64_t reserved_bytes(const std::string& dataset) const;
    // True if a job that has not started yet reserves more of the dataset than is cached.
    bool is_to_be_warmed(const ClusterDataset& dataset) const;
    // True if the node is to warm the dataset now. Nodes where jobs are expected warm it before all others. Both are
    // indices in planned_state().
    bool is_to_be_warmed_on(std::uint32_t dataset, std::uint32_t node) const;
    // True if the node says that its quota has no room for a further block of the dataset. An index as above.
    bool is_filled(std::uint32_t dataset, const NodeCache& quota) const;
    // Returns the nodes that have the dataset and where jobs are expected that wait for its cache.
    std::vector<std::uint32_t> expected_nodes(const ClusterState& state, const ClusterDataset& dataset) const;
    Result<std::size_t> find_dataset(const ClusterState& state, const std::string& name) const;
    // The bytes of cache that a pin of the dataset can have, and why not more.
    struct Room {
        double capacity = 0;  // of the nodes that have the dataset
        double others = 0;    // thereof, fixed by operators for other datasets
        double free() const;
    };
    Room room_for_pin(const ClusterState& state, const ClusterDataset& dataset) const;
    // Returns the most cache that a pin can take: each peer group that has the dataset needs the quota once.
    static double pinned_bytes(const ClusterState& state, const ClusterDataset& dataset, std::uint64_t pin);
    std::size_t scanning_nodes(std::int64_t now_ns) const;
    double grant_beside_scans(std::uint32_t job) const;
    double rate_for_scans(std::size_t scanning) const;
    double demand_of(const std::string& node, const std::string& job) const;
    double lasting_demand_of(const std::string& node, const std::string& job) const;
    using Quotas = std::map<std::string, std::vector<DatasetQuota>>;  // by node
    Quotas quotas() const;
    bool take_quotas(const ClusterRecord& record);
    void take_plan(ClusterState state, Plan plan);
    Result<void> save_plan(bool same_quotas);
    bool forget_a_silent_node(std::int64_t now_ns);
    // Saves `change` and everything else that changed since the last save.
    Result<void> save(ClusterRecord change);

    // The floor of a node on record: it takes this much once all its leases have expired.
    struct RecordedFloor {
        double noted = 0;      // handed out last; until it is confirmed, a higher one may come to nothing
        double confirmed = 0;  // at least this much is certainly on record
        std::int64_t no_rise_until_ns = std::numeric_limits<std::int64_t>::min();
    };

    const ClusterOptions configured_;
    ClusterOptions options_;
    LeaseLedger ledger_;
    Save save_;
    bool saves_rates_ = false;
    std::set<std::string> unsaved_nodes_;
    Quotas saved_quotas_;
    std::map<std::string, RecordedFloor> recorded_floors_;          // by node
    std::map<std::string, std::vector<std::string>> lowered_with_;  // nodes whose records are lowered in one's write
    std::vector<std::string> stale_records_;                        // nodes of earlier leaders, without a lease
    bool plan_unsaved_ = false;
    std::set<std::string> unsaved_jobs_;    // jobs whose measured rates are unsaved
    std::set<std::string> unsaved_epochs_;  // jobs whose epochs are unsaved
    std::map<std::string, KnownNode> nodes_;
    std::map<std::string, PeerGroup> groups_;  // by name
    std::uint64_t last_peer_number_ = 0;
    std::uint64_t last_peers_etag_;
    std::set<std::string> scanning_;  // nodes whose last report has scans
    NameNumbers dataset_numbers_;     // of all datasets in nodes' last reports
    std::int64_t excused_ns_ = 0;     // see excuse_silence()
    // The rates that the allocator before this one granted. A plan of some of the nodes gives each job other rates than
    // a plan of all. So the rates on record hold until all nodes with rates have reported, or the leases in which they
    // had them have expired.
    struct CarriedOver {
        std::int64_t until_ns = std::numeric_limits<std::int64_t>::min();
        std::map<std::string, RecordedRates> rates;   // by node
        std::set<std::string> unheard;                // the nodes in `rates` that have not reported
        std::map<std::string, MeasuredIdeal> ideals;  // of jobs that no node has reported yet
    };
    CarriedOver carried_;
    std::map<std::string, KnownJob> jobs_;
    std::size_t registered_count_ = 0;
    std::map<RegistrationOwner, std::size_t> registered_by_;  // number of registrations, above 0
    double floors_bytes_per_second_ = 0;
    std::map<std::string, std::uint64_t> pins_;
    // The cache that registered jobs reserve of a dataset, kept here so that more waiting jobs do not make a report or
    // a plan cost more.
    struct DatasetNeeds {
        std::multiset<std::uint64_t> reserved_bytes;  // of all jobs, each above 0
        std::multiset<std::uint64_t> waiting_bytes;   // of the jobs that have not started
        std::map<std::string, std::size_t> expected;  // by node: how many of these jobs are expected there
    };
    std::map<std::string, DatasetNeeds> dataset_needs_;  // by dataset, without datasets that no job reserves
    std::set<std::string> placed_;                       // registered jobs with a dataset and a node in runs_on
    std::vector<Turn> turns_;
    boost::unordered_flat_set<std::string> in_turns_;  // names of the jobs in turns_
    std::uint64_t plan_number_ = 0;
    ClusterState planned_state_;
    Plan plan_;
    // The jobs and datasets on each node of the plan, by index.
    IndexLists planned_jobs_;
    IndexLists planned_datasets_;
};

}  // namespace larder::allocator
