#include "scheduler/policies/admission_program.h"

#include <coin/CbcHeuristic.hpp>
#include <coin/CbcModel.hpp>
#include <coin/CoinPackedMatrix.hpp>
#include <coin/OsiClpSolverInterface.hpp>

#include <algorithm>
#include <cmath>
#include <set>

namespace larder::scheduler {
namespace {

constexpr int kNodesMax = 300;
constexpr int kIterationsMax = 20000;
constexpr double kGap = 0.4;             // the search stops this near to the best value: less than any job's value
constexpr double kLateLeaseCost = 1e-4;  // cost of a late lease, so that ties go to early ones

// The columns of each job and type: first one that says whether the job is admitted on the type, then one for each
// lease that says whether the job has it.
class AdmissionProgram {
public:
    AdmissionProgram(const LeasePlan& plan, std::uint32_t types, std::span<const AdmissionCandidate> candidates)
        : plan_(plan), types_(types), candidates_(candidates) {
        for (std::size_t c = 0; c < candidates.size(); ++c) {
            for (std::uint32_t type = 0; type < types; ++type) add_columns(c, type);
        }
        for (std::size_t c = 0; c < candidates.size(); ++c) add_rows_of(c);
        for (std::uint32_t type = 0; type < types; ++type) {
            for (std::uint32_t lease = 0; lease < plan.leases(); ++lease) add_capacity(type, lease);
        }
    }

    std::optional<std::vector<LeaseFit>> solve() {
        OsiClpSolverInterface solver;
        solver.messageHandler()->setLogLevel(0);
        const CoinPackedMatrix matrix(false, rows_.data(), columns_.data(), values_.data(),
                                      static_cast<CoinBigIndex>(values_.size()));
        solver.loadProblem(matrix, lower_.data(), upper_.data(), cost_.data(), row_lower_.data(), row_upper_.data());
        for (int column = 0; column < solver.getNumCols(); ++column) solver.setInteger(column);
        CbcModel model(solver);
        model.setLogLevel(0);
        model.solver()->messageHandler()->setLogLevel(0);
        CbcRounding rounding(model);
        model.addHeuristic(&rounding);
        model.setMaximumNodes(kNodesMax);
        model.setMaximumNumberIterations(kIterationsMax);
        model.setAllowableGap(kGap);
        model.setNumberStrong(0);  // strong branching takes longer than the nodes it saves
        model.branchAndBound();
        if (model.bestSolution() == nullptr) return std::nullopt;
        return leases_of(model.bestSolution());
    }

private:
    int first_column(std::size_t candidate, std::uint32_t type) const {
        return static_cast<int>((candidate * types_ + type) * (1 + plan_.leases()));
    }
    int lease_column(std::size_t candidate, std::uint32_t type, std::uint32_t lease) const {
        return first_column(candidate, type) + 1 + static_cast<int>(lease);
    }

    // Returns the fraction of the job's remaining work that it does in this lease before its deadline. Each lease after
    // the first may be a restart.
    double done_fraction(const LeaseDemand& demand, std::uint32_t type, std::uint32_t lease) const {
        const bool needs_no_restart = lease == 0 && ((demand.runs && demand.runs_on == type) || !demand.started);
        const double begins_s = plan_.start_s(lease) + (needs_no_restart ? demand.starting_s : demand.restart_s);
        const double seconds = std::min(plan_.end_s(lease), demand.deadline_s) - begins_s;
        return std::max(0.0, seconds) * demand.rates[type] / demand.remaining_bytes;
    }

    void add_columns(std::size_t c, std::uint32_t type) {
        const AdmissionCandidate& candidate = candidates_[c];
        const bool may_run = candidate.demand->rates[type] > 0 &&
                             (candidate.demand->stays_on == kAnyGpuType || candidate.demand->stays_on == type);
        lower_.push_back(candidate.must_admit && candidate.holds_type == type ? 1 : 0);
        upper_.push_back(may_run ? 1 : 0);
        cost_.push_back(-candidate.value);
        for (std::uint32_t lease = 0; lease < plan_.leases(); ++lease) {
            const bool useful = may_run && done_fraction(*candidate.demand, type, lease) > 0;
            const bool holds = lease == 0 && candidate.holds_type == type;
            lower_.push_back(holds ? 1 : 0);
            upper_.push_back(useful || holds ? 1 : 0);
            cost_.push_back(kLateLeaseCost * (1 + lease) / plan_.leases());
        }
    }

    void add_coefficient(int column, double value) {
        rows_.push_back(static_cast<int>(row_lower_.size()));
        columns_.push_back(column);
        values_.push_back(value);
    }
    void end_row(double lower, double upper) {
        row_lower_.push_back(lower);
        row_upper_.push_back(upper);
    }

    void add_rows_of(std::size_t c) {
        const AdmissionCandidate& candidate = candidates_[c];
        for (std::uint32_t type = 0; type < types_; ++type) add_coefficient(first_column(c, type), 1);
        end_row(candidate.must_admit ? 1 : 0, 1);
        for (std::uint32_t type = 0; type < types_; ++type) {
            if (candidate.demand->rates[type] <= 0) continue;
            // A lease counts for no more than all of the job's work. This makes the relaxation tighter.
            for (std::uint32_t lease = 0; lease < plan_.leases(); ++lease) {
                const double done = std::min(1.0, done_fraction(*candidate.demand, type, lease));
                if (done > 0) add_coefficient(lease_column(c, type, lease), done);
            }
            add_coefficient(first_column(c, type), -1);
            end_row(-1e-9, COIN_DBL_MAX);
            // Without these rows the relaxation is too weak to guide the search.
            for (std::uint32_t lease = candidate.holds_type == type ? 1 : 0; lease < plan_.leases(); ++lease) {
                add_coefficient(lease_column(c, type, lease), 1);
                add_coefficient(first_column(c, type), -1);
                end_row(-COIN_DBL_MAX, 0);
            }
        }
    }

    void add_capacity(std::uint32_t type, std::uint32_t lease) {
        for (std::size_t c = 0; c < candidates_.size(); ++c) {
            add_coefficient(lease_column(c, type, lease), candidates_[c].demand->gpus);
        }
        end_row(-COIN_DBL_MAX, plan_.free(type, lease));
        std::set<std::uint32_t> tenants;
        for (const AdmissionCandidate& candidate : candidates_) tenants.insert(candidate.demand->tenant);
        for (const std::uint32_t tenant : tenants) {
            const std::uint32_t claim = plan_.claim_left(tenant, type, lease);
            if (claim == kAllGpus) continue;
            for (std::size_t c = 0; c < candidates_.size(); ++c) {
                if (candidates_[c].demand->tenant != tenant) continue;
                add_coefficient(lease_column(c, type, lease), candidates_[c].demand->gpus);
            }
            end_row(-COIN_DBL_MAX, claim);
        }
    }

    std::vector<LeaseFit> leases_of(const double* solution) const {
        std::vector<LeaseFit> found(candidates_.size());
        for (std::size_t c = 0; c < candidates_.size(); ++c) {
            for (std::uint32_t type = 0; type < types_; ++type) {
                if (solution[first_column(c, type)] < 0.5) continue;
                found[c].gpu_type = type;
                found[c].end_s = candidates_[c].demand->deadline_s;
                for (std::uint32_t lease = 0; lease < plan_.leases(); ++lease) {
                    if (solution[lease_column(c, type, lease)] > 0.5) found[c].leases.push_back(lease);
                }
            }
        }
        return found;
    }

    const LeasePlan& plan_;
    std::uint32_t types_;
    std::span<const AdmissionCandidate> candidates_;
    std::vector<double> lower_, upper_, cost_;
    std::vector<int> rows_, columns_;
    std::vector<double> values_, row_lower_, row_upper_;
};

}  // namespace

std::optional<std::vector<LeaseFit>> admit_by_program(const LeasePlan& plan, std::uint32_t types,
                                                      std::span<const AdmissionCandidate> candidates) {
    if (candidates.empty()) return std::vector<LeaseFit>{};
    return AdmissionProgram(plan, types, candidates).solve();
}

}  // namespace larder::scheduler
