#pragma once

// What the policies that share out time have in common (Gavel, OSDI '20): gathering the jobs by kind, shares of the
// time on each type of GPU for each kind, then rounds in which they come true. A policy says what it goes by for a job
// (`terms`) and which shares follow (`allocate`). Shares are worked out anew when jobs, rates or GPUs have changed;
// between that only the priorities of the rounds do.

#include <span>
#include <vector>

#include "scheduler/policies/round.h"
#include "scheduler/policies/shares.h"

namespace larder::scheduler {

class Fair : public Policy {
public:
    bool preempts() const override { return true; }
    Result<Decision> decide(const Snapshot& snapshot) final;
    // The part of the time that each job should run on each type, by job of the snapshot, then type. None for jobs that
    // may not be stopped, nor for those that can run nowhere.
    Result<std::vector<double>> parts(const Snapshot& snapshot);

protected:
    static constexpr std::size_t kTerms = 3;

    // Jobs alike in all that follows.
    struct Kind {
        std::uint32_t jobs = 0;
        double gpus = 0;
        std::vector<double> rates;  // of each, by type; 0: cannot run there
        std::vector<double> terms;  // kTerms of them
        bool operator==(const Kind&) const = default;
    };
    struct Kinds {
        std::vector<double> gpus_by_type;  // without those of jobs that may not be stopped
        std::vector<Kind> kinds;
        bool operator==(const Kinds&) const = default;
    };

    // More kinds than `kinds_max` are made fewer by taking numbers for equal that nearly are (alike.h).
    explicit Fair(double round_s, std::size_t kinds_max = 512) : round_s_(round_s), kinds_max_(kinds_max) {}

    virtual void prepare(const Snapshot&) {}
    // `rates` by type; a policy that knows no types may set those above 0 to one.
    virtual void terms(const Snapshot& snapshot, const JobState& job, double gpus, std::span<double> rates,
                       std::span<double> terms) const = 0;
    // So many of the terms, the first, are names: not to be taken for others.
    virtual std::size_t exact_terms() const { return 0; }
    virtual Result<Shares> allocate(const Snapshot& snapshot, const Kinds& kinds) = 0;

    // Shares at the highest level: each kind's rate is level * needs[kind], and floors[kind] if given, or more.
    // `rest_too`: what is left at that level is shared out as well.
    Result<Shares> raise(const Kinds& kinds, std::span<const double> needs, std::span<const double> floors = {},
                         bool rest_too = true);
    // Types of which it matters to no kind which of them it gets are as one.
    static bool types_are_one(const Kinds& kinds);
    // Shares of them all, from those of that one.
    static Shares spread_over_types(const Kinds& kinds, std::span<const double> parts);

private:
    struct Candidates;

    static Candidates gather(const Fair& policy, const Snapshot& snapshot);

    double round_s_;
    std::size_t kinds_max_;
    ShareProgram program_;
    Kinds last_kinds_;
    Shares last_shares_;
};

}  // namespace larder::scheduler
