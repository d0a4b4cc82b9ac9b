#include "scheduler/policies/gandiva.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "scheduler/gpu_quotas.h"
#include "scheduler/growing.h"
#include "scheduler/policies/packing.h"

namespace larder::scheduler {
namespace {

// A job's place in line: waiting jobs come first, the longest waiting first; then running jobs, the latest started
// first.
struct Turn {
    std::int32_t priority = 0;
    bool running = false;
    double since_s = 0;
    std::uint32_t job = 0;

    auto key() const { return std::tuple(-priority, running, running ? -since_s : since_s, job); }
};

// Wants a job with the GPUs it has while none are spare: a grown job shrinks to the number it states.
Want base_want(const Snapshot& snapshot, std::uint32_t j) {
    Want want = want_as_it_is(snapshot, j);
    const JobState& job = *snapshot.jobs[j];
    if (job.running && job.gpus > job.spec->gpus) want.gpus = job.spec->gpus;
    return want;
}

// True if moving pays. Assumes at least one node fewer, because decide() moves the job only then.
bool moving_pays(const Snapshot& snapshot, const JobState& job) {
    const auto nodes = static_cast<std::uint32_t>(job.placement.size());
    if (!job.running || job.packed_with != nullptr || nodes < 2 || job.spec->rate_by_nodes.empty()) return false;
    const double slower = consolidation(*job.spec, nodes, nodes - 1);
    if (slower >= 1) return false;
    if (job.remaining_bytes == kNever) return true;
    const double here_s = expected_remaining_s(snapshot, job);
    return here_s * (1 - slower) > job.spec->restart_s;
}

class GandivaRound {
public:
    GandivaRound(const Snapshot& snapshot, double round_s)
        : snapshot_(snapshot),
          end_s_(period_end_s(snapshot.now_s, round_s)),
          room_(snapshot),
          packing_(snapshot),
          has_place_(snapshot.jobs.size()) {}

    Decision decide() {
        keep_leases();
        for (const Turn& turn : turns()) {
            Want want = base_want(snapshot_, turn.job);
            const std::uint32_t type = room_.take(*snapshot_.jobs[turn.job], want);
            if (type == kNoGpuType) {
                left_out_.push_back(want);
                continue;
            }
            want.gpu_type = type;
            want.lease_s = end_s_ - snapshot_.now_s;
            want.moves = moving_pays(snapshot_, *snapshot_.jobs[turn.job]);
            may_change_ = may_change_ || want.moves;
            decision_.wants.push_back(want);
        }
        if (left_out_.empty()) {
            grow_into_spare_gpus();
        } else {
            pack();
        }
        if (!left_out_.empty() || may_change_) decision_.next_s = end_s_;
        return std::move(decision_);
    }

private:
    void keep_leases() {
        std::vector<Want> guests;
        for (std::uint32_t j = 0; j < snapshot_.jobs.size(); ++j) {
            const JobState& job = *snapshot_.jobs[j];
            if (job.running) index_of_.emplace(&job, j);
            if (!is_unstoppable(job) && !holds_lease(job, snapshot_.now_s)) continue;
            Want want = want_as_it_is(snapshot_, j);
            want.gpu_type = job.gpu_type;
            want.promised = true;
            if (job.packed_with != nullptr) {
                guests.push_back(want);
                continue;
            }
            has_place_[j] = true;
            room_.take(job);
            decision_.wants.push_back(want);
        }
        kept_ = decision_.wants.size();
        for (Want& guest : guests) {
            const auto host = index_of_.find(snapshot_.jobs[guest.job]->packed_with);
            if (host == index_of_.end() || !has_place_[host->second]) continue;
            has_place_[guest.job] = true;
            guest.packed_with = host->second;
            hosts_with_guest_.push_back(host->second);
            may_change_ = true;
            decision_.wants.push_back(guest);
        }
    }

    std::vector<Turn> turns() const {
        std::vector<Turn> turns;
        for (std::uint32_t j = 0; j < snapshot_.jobs.size(); ++j) {
            const JobState& job = *snapshot_.jobs[j];
            if (has_place_[j]) continue;
            turns.push_back({.priority = job.spec->priority,
                             .running = job.running,
                             .since_s = job.running ? job.started_s : job.waiting_since_s,
                             .job = j});
        }
        std::ranges::sort(turns, {}, &Turn::key);
        return turns;
    }

    void pack() {
        for (const Want& want : decision_.wants) {
            if (want.packed_with || std::ranges::find(hosts_with_guest_, want.job) != hosts_with_guest_.end()) continue;
            packing_.add_host(want.job, want.gpu_type, want.gpus);
        }
        packing_.sort_hosts();
        GpuQuotas quotas(snapshot_.tenants);
        for (const Want& want : decision_.wants) quotas.take(snapshot_.jobs[want.job]->spec->tenant, want.gpus);
        for (Want& want : left_out_) {
            const JobState& job = *snapshot_.jobs[want.job];
            if (quotas.allowed(*job.spec, want.gpus) < want.gpus) {
                decision_.wants.push_back(want);
                continue;
            }
            std::optional<std::uint32_t> present_host;
            if (job.running && job.packed_with != nullptr) {
                const auto host = index_of_.find(job.packed_with);
                if (host != index_of_.end()) present_host = host->second;
            }
            const auto host = packing_.take_host(want.job, want.gpus, present_host);
            if (host) {
                want.packed_with = host;
                want.gpu_type = kAnyGpuType;
                want.lease_s = end_s_ - snapshot_.now_s;
                quotas.take(job.spec->tenant, want.gpus);
            }
            decision_.wants.push_back(want);
        }
    }

    void grow_into_spare_gpus() {
        std::vector<Growing> growing;
        std::vector<std::size_t> want_indices;
        for (std::size_t w = kept_; w < decision_.wants.size(); ++w) {
            const Want& want = decision_.wants[w];
            if (want.packed_with || want.gpus >= snapshot_.jobs[want.job]->spec->gpus_max) continue;
            growing.push_back({.job = want.job, .gpu_type = want.gpu_type, .gpus = want.gpus});
            want_indices.push_back(w);
        }
        grow(snapshot_, room_.left(), growing);
        for (std::size_t i = 0; i < growing.size(); ++i) {
            keep_to_claims(growing[i], decision_.wants[want_indices[i]].gpus);
            may_change_ = may_change_ || growing[i].gpus != decision_.wants[want_indices[i]].gpus;
            decision_.wants[want_indices[i]].gpus = growing[i].gpus;
        }
        // Jobs within a lease may grow once it expires.
        for (std::size_t w = 0; w < kept_; ++w) {
            const JobState& job = *snapshot_.jobs[decision_.wants[w].job];
            if (!is_unstoppable(job) && job.gpus < job.spec->gpus_max && room_.left(job.gpu_type) > 0)
                may_change_ = true;
        }
    }

    // Limits the growth of a job to its tenant's claim. grow() takes GPUs regardless of claims.
    void keep_to_claims(Growing& growing, std::uint32_t gpus_before) {
        const JobState& job = *snapshot_.jobs[growing.job];
        const std::uint32_t claimed = room_.claim_left(*job.spec, growing.gpu_type);
        std::uint32_t may_have = gpus_before + job.spec->usable_of(std::min(growing.gpus - gpus_before, claimed));
        // A restart pays only for the full growth, so a running job does not restart for less.
        const bool would_start_again = may_have < growing.gpus && job.running && may_have > job.gpus;
        if (would_start_again) may_have = std::max(gpus_before, job.gpus);
        room_.left()[growing.gpu_type] += growing.gpus - may_have;
        room_.take_claim(*job.spec, growing.gpu_type, may_have - gpus_before);
        growing.gpus = may_have;
    }

    const Snapshot& snapshot_;
    double end_s_;
    Room room_;
    Packing packing_;
    Decision decision_;
    std::vector<bool> has_place_;  // by job: within a lease, or not to be stopped
    std::size_t kept_ = 0;         // number of wants of jobs with has_place_, without guests
    std::vector<std::uint32_t> hosts_with_guest_;
    std::vector<Want> left_out_;
    std::unordered_map<const JobState*, std::uint32_t> index_of_;
    bool may_change_ = false;  // the next round may differ, even if nothing happens before
};

}  // namespace

Result<Decision> Gandiva::decide(const Snapshot& snapshot) {
    return GandivaRound(snapshot, round_s_).decide();
}

}  // namespace larder::scheduler
