#pragma once

// The common part of the policies that share out time (Gavel, OSDI '20): it groups the jobs by kind, finds shares of
// the time on each type of GPU for each kind, and runs rounds that realize them. A policy describes each job by a few
// numbers (`set_terms`) and computes the shares from them (`allocate`). Shares are computed again when jobs, rates or
// GPUs have changed; in between only the priorities of the rounds change.
//
// A policy may offer pairs of kinds. Their jobs then share GPUs in the rounds.

#include <span>
#include <vector>

#include "scheduler/policies/round.h"
#include "scheduler/policies/shares.h"

namespace larder::scheduler {

class Fair : public Policy {
public:
    bool preempts() const override { return true; }
    Result<Decision> decide(const Snapshot& snapshot) final;
    // Returns the part of the time that each job should run on each type, by job of the snapshot, then type. A job that
    // may not be stopped, or that can run nowhere, has none. The time that it shares GPUs counts in full.
    Result<std::vector<double>> parts(const Snapshot& snapshot);

protected:
    // The jobs that have the same GPUs, rates and terms.
    struct Kind {
        std::uint32_t jobs = 0;
        double gpus = 0;            // of each job
        std::vector<double> rates;  // of each job, by type; 0: cannot run there
        std::vector<double> terms;  // as set_terms() set them
        bool operator==(const Kind&) const = default;
    };
    struct Kinds {
        std::vector<double> gpus_by_type;  // without those of jobs that may not be stopped
        std::vector<Kind> kinds;
        bool operator==(const Kinds&) const = default;
    };

    // If there are more than `kinds_max` kinds, similar ones are treated as equal (similar_rows.h).
    explicit Fair(double round_s, std::size_t kinds_max = 512) : round_s_(round_s), kinds_max_(kinds_max) {}

    virtual void prepare(const Snapshot&) {}
    // Returns how many numbers describe a job.
    virtual std::size_t terms(const Snapshot&) const { return 3; }
    // Sets these numbers. `rates` is by type; a policy that treats all types as equal may set the rates above 0 to 1.
    virtual void set_terms(const Snapshot& snapshot, const JobState& job, double gpus, std::span<double> rates,
                           std::span<double> terms) const = 0;
    // Returns how many of the terms, counted from the first, are identifiers. Rows that differ in one are never merged.
    virtual std::size_t exact_terms() const { return 0; }
    virtual Result<Shares> allocate(const Snapshot& snapshot, const Kinds& kinds) = 0;

    // Returns shares at the highest level: each kind's rate is at least level * needs[kind], and at least floors[kind]
    // if given. If `spreads_rest`, the GPUs left at that level are shared out as well. The kinds of `pairs` may share
    // GPUs.
    Result<Shares> shares_at_highest_level(const Kinds& kinds, std::span<const double> needs,
                                           std::span<const double> floors = {}, bool spreads_rest = true,
                                           std::vector<SharePair> pairs = {});
    // True if every kind is as fast on one type as on any other, so that all types count as one.
    static bool types_are_one(const Kinds& kinds);
    // Returns the shares of all types. `parts` are the shares when all types count as one.
    static Shares spread_over_types(const Kinds& kinds, std::span<const double> parts);

private:
    struct Candidates;

    static Candidates gather(const Fair& policy, const Snapshot& snapshot);
    // Computes last_shares_, and the kind of each job of the snapshot.
    Result<std::vector<std::uint32_t>> share_out(const Snapshot& snapshot);
    std::vector<double> parts_of(const Snapshot& snapshot, std::span<const std::uint32_t> kind_of) const;

    double round_s_;
    std::size_t kinds_max_;
    ShareProgram program_;
    Kinds last_kinds_;
    Shares last_shares_;
    std::vector<SharePair> last_pairs_;  // of last_shares_
};

}  // namespace larder::scheduler
