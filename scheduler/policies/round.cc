#include "scheduler/policies/round.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/hash.h"

namespace larder::scheduler {
namespace {

constexpr double kPartMin = 1e-6;
constexpr double kPartSmall = 0.02;      // not worth changing GPUs for
constexpr double kPartnerSlack = 0.9;    // the present partner stays if it is this urgent, relative to the most urgent
constexpr std::uint32_t kAlone = ~0U;    // in place of the kind of a partner
constexpr double kGoldenPart = 0.61803;  // spreads the rounds in which a fraction of a GPU is rounded up

struct Pair {
    std::int32_t priority = 0;
    double urgency = 0;
    bool runs_there = false;
    std::uint32_t at = 0;  // index in jobs
    std::uint32_t type = 0;
};

// Every job counts as if it had already run for a tenth of a round, so that a new job starts soon, but not regardless
// of its share.
double urgency(const Snapshot& snapshot, const JobState& job, std::uint32_t type, double part, double round_s) {
    const double possible_run_s = full_recent_run_s(snapshot.now_s - job.spec->submit_s + round_s);
    return part * possible_run_s / (recent_run_s(job, type, snapshot.now_s) + round_s / 10);
}

// How jobs of a kind use GPUs of a type: alone or beside a kind. Counts the GPUs used so within a round.
struct Use {
    std::uint32_t kind = 0;
    std::uint32_t partner = kAlone;
    double target = 0;  // GPUs of this round
    double used = 0;

    double left() const { return target - used; }
};

// The uses of GPUs of a round that the shares ask for, where a kind shares GPUs at all.
class Uses {
public:
    Uses(const Snapshot& snapshot, const PackedShares& packed, double round_s) : round_(snapshot.now_s / round_s) {
        if (packed.pairs.empty()) return;
        std::map<std::uint32_t, double> jobs;  // by kind
        for (const std::uint32_t kind : packed.kind_of) ++jobs[kind];
        for (std::size_t i = 0; i < packed.pairs.size(); ++i) {
            const SharePair& pair = packed.pairs[i];
            const double gpus = packed.shares->pair_gpus[i];
            if (gpus <= kPartMin) continue;
            add(pair.type, {.kind = pair.first, .partner = pair.second, .target = gpus});
            for (const std::uint32_t kind : {pair.first, pair.second}) {
                if (find(pair.type, kind, kAlone) != nullptr) continue;
                add(pair.type, {.kind = kind, .target = packed.shares->part(kind, pair.type) * jobs[kind]});
            }
        }
    }

    bool any() const { return !uses_.empty(); }
    // Returns the indices of the kind's uses; empty: the kind never shares GPUs of the type.
    std::span<const std::uint32_t> of(std::uint32_t type, std::uint32_t kind) const {
        const auto found = by_kind_.find({type, kind});
        return found == by_kind_.end() ? std::span<const std::uint32_t>() : found->second;
    }
    Use& at(std::uint32_t index) { return uses_[index]; }
    Use* find(std::uint32_t type, std::uint32_t kind, std::uint32_t partner) {
        for (const std::uint32_t index : of(type, kind)) {
            Use& use = uses_[index];
            const bool same = use.kind == kind && use.partner == partner;
            if (same || (use.kind == partner && use.partner == kind)) return &use;
        }
        return nullptr;
    }

private:
    void add(std::uint32_t type, Use use) {
        const std::uint64_t id = mix64((std::uint64_t(type) << 60) ^ (std::uint64_t(use.kind) << 30) ^ use.partner);
        const double shift = static_cast<double>(id >> 11) * 0x1p-53 + std::floor(round_ + 1e-9) * kGoldenPart;
        use.target += shift - std::floor(shift);
        const auto index = static_cast<std::uint32_t>(uses_.size());
        by_kind_[{type, use.kind}].push_back(index);
        if (use.partner != kAlone && use.partner != use.kind) by_kind_[{type, use.partner}].push_back(index);
        uses_.push_back(use);
    }

    double round_;
    std::vector<Use> uses_;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::uint32_t>> by_kind_;  // by type and kind
};

class RoundMaker {
public:
    RoundMaker(const Snapshot& snapshot, std::span<const RoundJob> jobs, double round_s, const PackedShares& packed,
               Decision& decision)
        : snapshot_(snapshot),
          jobs_(jobs),
          round_s_(round_s),
          end_s_(period_end_s(snapshot.now_s, round_s)),
          packed_(packed),
          decision_(decision),
          uses_(snapshot, packed, round_s),
          chosen_(jobs.size()),
          settled_(!uses_.any()) {
        left_.reserve(snapshot.gpu_types.size());
        for (const GpuTypeState& type : snapshot.gpu_types) left_.push_back(type.gpus);
    }

    void make() {
        keep_leases();
        list_pairs();
        join_lone_hosts();
        std::vector<Pair> deferred;
        for (const Pair& pair : pairs_) {
            if (!chosen_[pair.at] && !take(pair, true)) deferred.push_back(pair);
        }
        std::vector<std::uint32_t> passed_over;
        for (const Pair& pair : deferred) {
            if (!chosen_[pair.at] && !take(pair, false)) passed_over.push_back(pair.at);
        }
        // Jobs without any share come after jobs that found no room on the types where they have a share.
        for (std::uint32_t i = 0; i < jobs_.size(); ++i) passed_over.push_back(i);
        for (const std::uint32_t i : passed_over) {
            if (chosen_[i]) continue;
            chosen_[i] = true;
            settled_ = false;
            const JobState& job = state(i);
            // The round must be worth the restart.
            if (job.running || 2 * job.spec->restart_s <= round_s_) add_want(i, job.spec->gpu_type);
        }
        if (!settled_) decision_.next_s = std::min(decision_.next_s, end_s_);
    }

private:
    const JobState& state(std::uint32_t at) const { return *snapshot_.jobs[jobs_[at].job]; }
    std::uint32_t kind_of(std::uint32_t at) const { return packed_.kind_of[jobs_[at].job]; }

    void keep_leases() {
        std::unordered_map<const JobState*, std::uint32_t> kept;  // jobs with GPUs of their own: index in the snapshot
        std::vector<std::uint32_t> guests;
        std::vector<bool> is_kept(snapshot_.jobs.size());
        for (std::uint32_t j = 0; j < snapshot_.jobs.size(); ++j) {
            const JobState& job = *snapshot_.jobs[j];
            if (!is_unstoppable(job) && !holds_lease(job, snapshot_.now_s)) continue;
            if (job.packed_with != nullptr) {
                guests.push_back(j);
                continue;
            }
            left_[job.gpu_type] -= std::min(left_[job.gpu_type], job.gpus);
            Want want = want_as_it_is(snapshot_, j);
            want.promised = true;
            decision_.wants.push_back(want);
            kept.emplace(&job, j);
            is_kept[j] = true;
        }
        for (const std::uint32_t j : guests) {
            const auto host = kept.find(snapshot_.jobs[j]->packed_with);
            if (host == kept.end()) continue;
            Want want = want_as_it_is(snapshot_, j);
            want.gpu_type = kAnyGpuType;
            want.promised = true;
            want.packed_with = host->second;
            decision_.wants.push_back(want);
            is_kept[j] = true;
            count_kept(host->second, packed_.kind_of.empty() ? kAlone : packed_.kind_of[j]);
            kept.erase(host);
        }
        for (const auto& [job, j] : kept) count_kept(j, kAlone);
        for (std::uint32_t i = 0; i < jobs_.size(); ++i) {
            chosen_[i] = is_kept[jobs_[i].job];
            if (chosen_[i] && kept.contains(&state(i))) lone_hosts_.push_back(i);
        }
    }

    void count_kept(std::uint32_t job, std::uint32_t partner) {
        if (!uses_.any()) return;
        Use* const use = uses_.find(snapshot_.jobs[job]->gpu_type, packed_.kind_of[job], partner);
        if (use != nullptr) ++use->used;
    }

    void list_pairs() {
        for (std::uint32_t i = 0; i < jobs_.size(); ++i) {
            const JobState& job = state(i);
            std::uint32_t types = 0;
            const double largest = std::ranges::max(jobs_[i].parts);
            for (std::uint32_t type = 0; type < left_.size(); ++type) {
                const double part = jobs_[i].parts[type];
                if (part <= kPartMin || (part < kPartSmall && part < largest)) continue;
                ++types;
                if (chosen_[i]) continue;
                pairs_.push_back({.priority = job.spec->priority,
                                  .urgency = urgency(snapshot_, job, type, part, round_s_),
                                  .runs_there = job.running && job.gpu_type == type,
                                  .at = i,
                                  .type = type});
            }
            settled_ = settled_ && types < 2;
        }
        std::ranges::sort(pairs_, [](const Pair& a, const Pair& b) {
            return std::tuple(-a.priority, -a.urgency, !a.runs_there, a.at, a.type) <
                   std::tuple(-b.priority, -b.urgency, !b.runs_there, b.at, b.type);
        });
        if (!uses_.any()) return;
        for (std::uint32_t p = 0; p < pairs_.size(); ++p) {
            by_kind_[{pairs_[p].type, kind_of(pairs_[p].at)}].push_back(p);
        }
    }

    // Within a round, a job whose partner has ended gets another one.
    void join_lone_hosts() {
        for (const std::uint32_t host : lone_hosts_) {
            const std::uint32_t type = state(host).gpu_type;
            if (!uses_.any() || uses_.of(type, kind_of(host)).empty()) continue;
            Use* const alone = uses_.find(type, kind_of(host), kAlone);
            if (alone == nullptr || alone->left() > 0) continue;
            for (const std::uint32_t index : by_need(type, kind_of(host))) {
                Use& use = uses_.at(index);
                if (use.partner == kAlone || use.left() < 1) continue;
                const auto guest = partner_of(host, type, use);
                if (!guest) continue;
                --alone->used;
                ++use.used;
                add_guest(host, *guest);
                break;
            }
        }
    }

    // Gives the job GPUs of the type, alone or with a partner. If `strict`, only as the shares ask for in this round.
    bool take(const Pair& pair, bool strict) {
        const RoundJob& job = jobs_[pair.at];
        if (left_[pair.type] < job.gpus) return false;
        Use* chosen = nullptr;
        std::optional<std::uint32_t> partner;
        if (uses_.any()) {
            const std::vector<std::uint32_t> uses = by_need(pair.type, kind_of(pair.at));
            for (const std::uint32_t index : uses) {
                Use& use = uses_.at(index);
                if (strict && use.left() < 1) break;
                if (use.partner != kAlone) partner = partner_of(pair.at, pair.type, use);
                if (use.partner != kAlone && !partner) continue;
                chosen = &use;
                break;
            }
            if (strict && chosen == nullptr && !uses.empty()) return false;
        }
        if (chosen != nullptr) ++chosen->used;
        left_[pair.type] -= job.gpus;
        chosen_[pair.at] = true;
        std::uint32_t host = pair.at;
        if (partner && !stays(host, pair.type) && stays(*partner, pair.type)) std::swap(host, *partner);
        add_want(host, pair.type);
        if (partner) add_guest(host, *partner);
        return true;
    }

    // True if the job has GPUs of its own of the type.
    bool stays(std::uint32_t at, std::uint32_t type) const {
        return state(at).running && state(at).packed_with == nullptr && state(at).gpu_type == type;
    }

    // Returns the uses of the kind, the one with most GPUs left first.
    std::vector<std::uint32_t> by_need(std::uint32_t type, std::uint32_t kind) {
        const auto uses = uses_.of(type, kind);
        std::vector<std::uint32_t> order;
        order.reserve(uses.size());
        std::ranges::copy(uses, std::back_inserter(order));
        std::ranges::stable_sort(order, std::ranges::greater{},
                                 [&](std::uint32_t index) { return uses_.at(index).left(); });
        return order;
    }

    // Returns the job that should run beside `at`: the most urgent job of the kind, or the present partner.
    std::optional<std::uint32_t> partner_of(std::uint32_t at, std::uint32_t type, const Use& use) const {
        const std::uint32_t kind = use.kind == kind_of(at) ? use.partner : use.kind;
        const auto found = by_kind_.find({type, kind});
        if (found == by_kind_.end()) return std::nullopt;
        std::optional<std::uint32_t> best;
        double best_urgency = 0;
        for (const std::uint32_t p : found->second) {
            const Pair& pair = pairs_[p];
            if (best && pair.urgency < best_urgency * kPartnerSlack) break;
            if (pair.at == at || chosen_[pair.at] || !may_share(at, pair.at, type)) continue;
            const bool are_partners =
                state(at).packed_with == &state(pair.at) || state(pair.at).packed_with == &state(at);
            if (best && !are_partners) continue;
            best = pair.at;
            best_urgency = std::max(best_urgency, pair.urgency);
            if (are_partners) break;
        }
        return best;
    }

    bool may_share(std::uint32_t a, std::uint32_t b, std::uint32_t type) const {
        const JobSpec& first = *state(a).spec;
        const JobSpec& second = *state(b).spec;
        if (first.priority != second.priority || (!snapshot_.claims.empty() && first.tenant != second.tenant)) {
            return false;
        }
        return pair_parts(snapshot_.pair_rates, first, second, type, 1).may_share();
    }

    void add_want(std::uint32_t at, std::uint32_t type) {
        Want wanted;
        wanted.job = jobs_[at].job;
        wanted.gpus = jobs_[at].gpus;
        wanted.gpu_type = type;
        wanted.lease_s = end_s_ - snapshot_.now_s;
        decision_.wants.push_back(wanted);
    }

    void add_guest(std::uint32_t host, std::uint32_t guest) {
        chosen_[host] = chosen_[guest] = true;
        add_want(guest, kAnyGpuType);
        decision_.wants.back().packed_with = jobs_[host].job;
    }

    const Snapshot& snapshot_;
    std::span<const RoundJob> jobs_;
    double round_s_;
    double end_s_;
    const PackedShares& packed_;
    Decision& decision_;
    Uses uses_;
    std::vector<std::uint32_t> left_;        // GPUs by type
    std::vector<bool> chosen_;               // by job of jobs_
    std::vector<std::uint32_t> lone_hosts_;  // within a lease and without a guest, as indices in jobs_
    std::vector<Pair> pairs_;                // by priority
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::uint32_t>> by_kind_;  // of pairs_, by type, kind
    bool settled_;  // no job has to wait or to change its type
};

}  // namespace

void want_round(const Snapshot& snapshot, std::span<const RoundJob> jobs, double round_s, Decision& decision,
                const PackedShares& packed) {
    RoundMaker(snapshot, jobs, round_s, packed, decision).make();
}

}  // namespace larder::scheduler
