#pragma once

// The working state of one decide() call. choose() selects wishes in order while GPUs are left, and carry_out() applies
// them to the placer. Several decisions may be chosen one after the other; later ones get the GPUs that are left.
// Nothing changes before carry_out().

#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "scheduler/decide.h"
#include "scheduler/gpu_quotas.h"
#include "scheduler/growing.h"
#include "scheduler/room.h"

namespace larder::scheduler {

class DecisionRound {
public:
    // The arguments, and every Decision given to choose(), must outlive this object. `claims`: as in Snapshot.
    DecisionRound(const DecideInput& input, Placer& placer, const Policy& policy,
                  std::span<const std::uint32_t> claims);

    void choose(const Decision& decision);
    // Returns the GPUs of the type that no job has been given yet. The GPUs of a running job that is opportunistic or
    // may be stopped count as left until the job is chosen.
    std::uint32_t left(std::uint32_t gpu_type) const { return room_.left(gpu_type); }
    void carry_out(Actions& actions);
    WaitsFor waits_for(std::uint32_t job) const;

private:
    enum class Fate : std::uint8_t {
        not_wanted,  // not wanted so far
        keeps,       // runs on as it is
        pending,     // wanted, with GPUs that it does not have yet
        blocked,     // wanted, but the jobs before it leave too few GPUs
        unclaimed,   // wanted, but the jobs before it leave too few GPUs that its tenant has a claim to
        over_quota,
        refused,  // its deadline cannot be met
        unplaced,
        starts,
    };
    struct Pending {
        const Decision* decision = nullptr;
        const Want* want = nullptr;
        std::uint32_t gpus = 0;
        std::uint32_t gpu_type = 0;
    };
    // An opportunistic job that lost its GPUs and may get others.
    struct Evicted {
        std::uint32_t job = 0;
        std::uint32_t gpus = 0;
        std::uint32_t gpu_type = 0;
    };

    // An elastic job that runs with more GPUs than the policy wants for it.
    struct Grown {
        std::uint32_t job = 0;
        std::uint32_t gpus = 0;  // wanted
    };

    void choose_one(const Decision& decision, const Want& want);
    void keep(std::uint32_t j, std::uint32_t gpus);
    std::uint32_t type_with_room(const Want& want, std::uint32_t gpus, bool claims) const;
    void take(const JobSpec& spec, std::uint32_t gpu_type, std::uint32_t gpus, bool claims);
    bool may_share(const Want& guest) const;
    void hold_up(const Decision& decision, const JobState& job);
    bool is_held_up(const JobState& job) const;
    bool runs_without_claim(std::uint32_t j) const;
    bool must_stop(std::uint32_t j) const;
    bool is_unwanted(std::uint32_t j) const;

    void carry_out_pending(Actions& actions);
    void restore_stopped_and_demoted(Actions& actions);
    void set_leases(const Decision& decision, Actions& actions) const;
    PlaceRequest request(std::uint32_t j, std::uint32_t gpus, std::uint32_t type, bool opportunistic) const;
    bool place(const Pending& pending, Actions& actions);
    bool keeps_size(const Pending& pending);
    Placement best_place(const Gang& gang, const PlaceRequest& place_request, Placement usual);
    bool pack(const Pending& pending, Actions& actions);
    void start(const Pending& pending, Placement placement, Actions& actions);
    void stop(std::uint32_t j);
    void release_gpus(std::uint32_t j);
    bool put_back(PlaceRequest place_request, const Placement& placement, std::span<const HeldCell> held);
    void stop_guests(Actions& actions);
    bool stop_unwanted(bool opportunistic_only);
    void take_claim(std::uint32_t j, Actions& actions);
    void place_unclaimed(Actions& actions);
    void evict(JobId id, Actions& actions);
    void place_evicted(Actions& actions);
    void move(std::uint32_t j, Actions& actions);
    bool restore_stopped(std::uint32_t j);

    // Elastic jobs.
    void keep_grown(Actions& actions);
    bool shrink_grown(Actions& actions);
    std::uint32_t shrink(std::uint32_t j, std::uint32_t least, std::uint32_t gpus, Actions& actions);
    Placement resized(std::uint32_t j, std::uint32_t least, std::uint32_t most) const;
    void add_nodes(Placement& placement, const JobSpec& spec, std::uint32_t gpu_type, std::uint32_t gpus) const;
    void restore_shrunk(Actions& actions);
    std::vector<Growing> jobs_that_may_grow(const Actions& actions) const;
    bool anyone_waits() const;
    double room_lasts_until_s() const;
    bool is_growth_worthwhile(const Growing& grown, std::uint32_t gpus_before, std::size_t nodes, bool goes_on,
                              double horizon_s) const;
    void grow_into_spare_gpus(Actions& actions);
    void grow(const Growing& grown, double horizon_s, Actions& actions);

    const DecideInput& input_;
    std::span<const JobState* const> jobs_;
    Placer& placer_;
    bool preempts_;
    bool grows_;  // decide() sizes elastic jobs, not the policy
    std::vector<Fate> fates_;
    std::vector<bool> is_stopped_;
    std::optional<PlacesByPlan> places_;  // made when a job is to be placed
    // True for a job that runs opportunistically and is wanted on the same GPUs, but with its tenant's claim.
    std::vector<bool> only_gains_claim_;
    Room room_;                                         // for jobs not chosen yet
    std::set<std::pair<bool, std::uint32_t>> held_up_;  // queues whose jobs must wait: (is opportunistic, tenant)
    GpuQuotas quotas_;
    std::vector<const Decision*> decisions_;
    std::vector<Pending> pending_;
    std::vector<Pending> unclaimed_;            // waiting jobs that their tenants' claims left too little room
    std::set<std::uint32_t> claims_not_taken_;  // tenants of jobs that could not get a claim to their GPUs
    std::vector<std::uint32_t> moves_;
    std::vector<std::uint32_t> stopped_;
    std::map<std::uint32_t, std::vector<HeldCell>> held_before_;  // cells of stopped jobs, which may get them back
    std::vector<std::uint32_t> demoted_;
    std::vector<Evicted> evicted_;
    std::vector<Grown> grown_;
    std::vector<std::uint32_t> shrunk_;  // jobs of grown_ shrunk for a gang that found no place
    bool grown_shrunk_ = false;
    bool unwanted_stopped_ = false;
    bool opportunistic_stopped_ = false;
};

}  // namespace larder::scheduler
