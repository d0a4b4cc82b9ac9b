#include <coin/ClpSimplex.hpp>
#include <coin/CoinPackedMatrix.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "base/assert.h"
#include "scheduler/policies/shares.h"

namespace larder::scheduler {
namespace {

constexpr double kTolerance = 1e-9;
constexpr unsigned char kBasic = ClpSimplex::basic;

using Statuses = std::vector<unsigned char>;

// Columns: each group's part of the time on each type, then the pairs, then the level. A pair's column is 1 if as many
// of its groups' jobs share GPUs all the time as can. Rows: each group's time and rate, then the GPUs
// of each type. Rates are relative to the group's fastest type and GPUs to all of a type, so that all numbers are near
// 1.
class LevelProgram {
public:
    explicit LevelProgram(const ShareProblem& problem)
        : problem_(problem),
          groups_(static_cast<int>(problem.groups.size())),
          types_(static_cast<int>(problem.gpus_by_type.size())),
          pairs_(static_cast<int>(problem.pairs.size())),
          level_column_(groups_ * types_ + pairs_) {
        for (const ShareGroup& group : problem.groups) {
            fastest_.push_back(*std::ranges::max_element(group.rates));
            level_unit_ = std::max(level_unit_, group.need / fastest_.back());
        }
        if (level_unit_ <= 0) level_unit_ = 1;
        for (const SharePair& pair : problem.pairs) {
            const double jobs = std::min(problem.groups[pair.first].jobs, problem.groups[pair.second].jobs);
            pair_unit_.push_back(pair.first == pair.second ? jobs / 2 : jobs);
        }
        load();
    }

    int row_of_time(int group) const { return 2 * group; }
    int row_of_rate(int group) const { return 2 * group + 1; }
    int columns() const { return level_column_ + 1; }
    int rows() const { return 2 * groups_ + types_; }
    ClpSimplex& model() { return model_; }

    bool solve_from(const Statuses& statuses) {
        if (!statuses.empty()) {
            model_.copyinStatus(statuses.data());
            model_.dual();
            if (model_.isProvenOptimal()) return true;
            model_.allSlackBasis(true);
        }
        model_.primal();
        return model_.isProvenOptimal();
    }

    Statuses statuses() const {
        Statuses statuses(model_.statusArray(), model_.statusArray() + columns() + rows());
        for (unsigned char& status : statuses) status &= 7;  // CLP uses the higher bits itself
        return statuses;
    }

    // Keeps the level and maximizes the sum over jobs of GPUs * rate / rate on the job's fastest type.
    bool spread_rest() {
        const double level = model_.primalColumnSolution()[level_column_];
        model_.setColumnLower(level_column_, level * (1 - kTolerance));
        model_.setObjectiveCoefficient(level_column_, 0);
        for (int g = 0; g < groups_; ++g) {
            const ShareGroup& group = group_at(g);
            for (int type = 0; type < types_; ++type) {
                const double gained = relative_rate(g, type) * group.jobs * group.gpus;
                model_.setObjectiveCoefficient(column(g, type), -gained / gpus_);
            }
        }
        for (int i = 0; i < pairs_; ++i) {
            const SharePair& pair = pair_at(i);
            const double gained = pair.first_rate / fastest_[pair.first] + pair.second_rate / fastest_[pair.second];
            model_.setObjectiveCoefficient(groups_ * types_ + i, -gained * pair_unit_at(i) / gpus_);
        }
        model_.primal();
        return model_.isProvenOptimal();
    }

    std::vector<bool> binding() const {
        std::vector<bool> binding;
        binding.reserve(static_cast<std::size_t>(groups_));
        const double* const prices = model_.dualRowSolution();
        for (int g = 0; g < groups_; ++g) binding.push_back(std::abs(prices[row_of_rate(g)]) > kTolerance);
        return binding;
    }

    Shares shares() const {
        Shares shares;
        shares.types = static_cast<std::uint32_t>(types_);
        const double* const parts = model_.primalColumnSolution();
        shares.parts.reserve(static_cast<std::size_t>(groups_) * static_cast<std::size_t>(types_));
        for (int i = 0; i < groups_ * types_; ++i) shares.parts.push_back(std::clamp(parts[i], 0.0, 1.0));
        shares.pair_gpus.reserve(static_cast<std::size_t>(pairs_));
        for (int i = 0; i < pairs_; ++i) {
            shares.pair_gpus.push_back(std::clamp(parts[groups_ * types_ + i], 0.0, 1.0) * pair_unit_at(i));
        }
        shares.level = level_reached(problem_, shares);
        return shares;
    }

private:
    const ShareGroup& group_at(int group) const { return problem_.groups[static_cast<std::size_t>(group)]; }
    double relative_rate(int group, int type) const {
        return group_at(group).rates[static_cast<std::size_t>(type)] / fastest_[static_cast<std::size_t>(group)];
    }
    int column(int group, int type) const { return group * types_ + type; }
    const SharePair& pair_at(int pair) const { return problem_.pairs[static_cast<std::size_t>(pair)]; }
    double pair_unit_at(int pair) const { return pair_unit_[static_cast<std::size_t>(pair)]; }

    void load() {
        std::vector<CoinBigIndex> starts{0};
        std::vector<int> indices;
        std::vector<double> values, upper, cost;
        for (const double gpus : problem_.gpus_by_type) gpus_ += gpus;
        const auto add_coefficient = [&](int row, double value) {
            if (value == 0) return;
            indices.push_back(row);
            values.push_back(value);
        };
        const auto end_column = [&](double upper_bound, double column_cost) {
            starts.push_back(static_cast<CoinBigIndex>(indices.size()));
            upper.push_back(upper_bound);
            cost.push_back(column_cost);
        };
        for (int g = 0; g < groups_; ++g) {
            for (int type = 0; type < types_; ++type) {
                const double rate = relative_rate(g, type);
                const double gpus = problem_.gpus_by_type[static_cast<std::size_t>(type)];
                add_coefficient(row_of_time(g), 1);
                add_coefficient(row_of_rate(g), rate);
                if (gpus > 0) add_coefficient(2 * groups_ + type, group_at(g).jobs * group_at(g).gpus / gpus);
                end_column(rate > 0 && gpus > 0 ? 1 : 0, 0);
            }
        }
        for (int i = 0; i < pairs_; ++i) {
            const SharePair& pair = pair_at(i);
            const auto add_group = [&](std::uint32_t group) {
                const double units = pair_unit_at(i) / problem_.groups[group].jobs;
                add_coefficient(row_of_time(static_cast<int>(group)), pair.jobs_of(group) * units);
                add_coefficient(row_of_rate(static_cast<int>(group)), pair.rate_of(group) / fastest_[group] * units);
            };
            add_group(pair.first);
            if (pair.second != pair.first) add_group(pair.second);
            const double gpus = problem_.gpus_by_type[pair.type];
            if (gpus > 0) add_coefficient(2 * groups_ + static_cast<int>(pair.type), pair_unit_at(i) / gpus);
            const bool has_jobs = pair.first != pair.second || problem_.groups[pair.first].jobs > 1;
            end_column(gpus > 0 && has_jobs ? 1 : 0, 0);
        }
        for (int g = 0; g < groups_; ++g) {
            add_coefficient(row_of_rate(g), -group_at(g).need / fastest_[static_cast<std::size_t>(g)] / level_unit_);
        }
        const bool bounded = std::ranges::any_of(problem_.groups, [](const ShareGroup& g) { return g.need > 0; });
        end_column(bounded ? COIN_DBL_MAX : 0, -1);

        std::vector<double> row_lower, row_upper;
        for (int g = 0; g < groups_; ++g) {
            row_lower.push_back(-COIN_DBL_MAX);
            row_upper.push_back(1);
            row_lower.push_back(group_at(g).floor / fastest_[static_cast<std::size_t>(g)]);
            row_upper.push_back(COIN_DBL_MAX);
        }
        row_lower.resize(static_cast<std::size_t>(rows()), -COIN_DBL_MAX);
        row_upper.resize(static_cast<std::size_t>(rows()), 1);
        const std::vector<double> lower(upper.size());
        model_.setLogLevel(0);
        model_.setPrimalTolerance(kTolerance);
        model_.setDualTolerance(kTolerance);
        model_.loadProblem(columns(), rows(), starts.data(), indices.data(), values.data(), lower.data(), upper.data(),
                           cost.data(), row_lower.data(), row_upper.data());
    }

    const ShareProblem& problem_;
    int groups_;
    int types_;
    int pairs_;
    int level_column_;
    std::vector<double> fastest_;
    std::vector<double> pair_unit_;  // the GPUs of a pair whose column is 1
    double level_unit_ = 0;          // unit of the level: the largest need of a group
    double gpus_ = 0;
    ClpSimplex model_;
};

}  // namespace

// The last basis, by group.
struct ShareProgram::Basis {
    std::vector<ShareGroup> groups;
    std::vector<SharePair> pairs;
    std::size_t types = 0;
    Statuses statuses;
};

namespace {

// When similar jobs are merged, the rates of a kind vary a little with its jobs, so they are compared with a tolerance.
bool is_similar(const ShareGroup& a, const ShareGroup& b) {
    const auto near = [](double x, double y) { return std::abs(x - y) <= 0.1 * std::max(x, y); };
    return a.gpus == b.gpus && std::ranges::equal(a.rates, b.rates, near);
}

// Returns, for each group, which group of the last solution it inherits its part of the basis from: the same kind of
// job if there was one, else a group that no other group inherits from; -1: none is left.
std::vector<int> inherit(const std::vector<ShareGroup>& before, const std::vector<ShareGroup>& now) {
    std::vector<int> from(now.size(), -1);
    std::vector<bool> taken(before.size());
    std::size_t b = 0;
    for (std::size_t n = 0; n < now.size(); ++n) {
        for (std::size_t ahead = b; ahead < std::min(before.size(), b + 8); ++ahead) {
            if (!is_similar(before[ahead], now[n])) continue;
            from[n] = static_cast<int>(ahead);
            taken[ahead] = true;
            b = ahead + 1;
            break;
        }
    }
    std::size_t next = 0;
    for (int& group : from) {
        if (group >= 0) continue;
        while (next < before.size() && taken[next]) ++next;
        if (next == before.size()) break;
        group = static_cast<int>(next++);
    }
    return from;
}

// Sets the statuses of the columns of pairs from those of the last solution. `from`: by group, as inherit() returns it.
template <typename Basis>
void inherit_pairs(const Basis& before, const ShareProblem& problem, const std::vector<int>& from, Statuses& statuses) {
    if (before.pairs.empty()) return;
    const std::size_t begin_before = before.groups.size() * before.types;
    std::map<std::tuple<int, int, std::uint32_t>, unsigned char> basic;
    for (std::size_t i = 0; i < before.pairs.size(); ++i) {
        const SharePair& pair = before.pairs[i];
        const unsigned char status = before.statuses[begin_before + i];
        if (status == ClpSimplex::atLowerBound) continue;
        basic.emplace(std::tuple(static_cast<int>(pair.first), static_cast<int>(pair.second), pair.type), status);
    }
    const std::size_t begin = problem.groups.size() * problem.gpus_by_type.size();
    for (std::size_t i = 0; i < problem.pairs.size(); ++i) {
        const SharePair& pair = problem.pairs[i];
        const auto [first, second] = std::minmax({from[pair.first], from[pair.second]});
        const auto found = basic.find({first, second, pair.type});
        if (found != basic.end()) statuses[begin + i] = found->second;
    }
}

// Makes as many variables basic as there are rows, after groups have come or gone: adds slacks, or takes columns out.
void repair_basis(Statuses& statuses, std::size_t columns) {
    const auto rows = statuses.size() - columns;
    auto basic = static_cast<std::size_t>(std::ranges::count(statuses, kBasic));
    for (std::size_t i = statuses.size(); i > columns && basic < rows; --i) {
        if (statuses[i - 1] == kBasic) continue;
        statuses[i - 1] = kBasic;
        ++basic;
    }
    for (std::size_t i = 0; i < columns && basic > rows; ++i) {
        if (statuses[i] != kBasic) continue;
        statuses[i] = ClpSimplex::atLowerBound;
        --basic;
    }
}

}  // namespace

ShareProgram::ShareProgram() : basis_(std::make_unique<Basis>()) {}
ShareProgram::~ShareProgram() = default;

Result<Shares> ShareProgram::solve(const ShareProblem& problem, bool spreads_rest) {
    const std::size_t types = problem.gpus_by_type.size();
    const std::size_t groups = problem.groups.size();
    LARDER_ASSERT(groups > 0 && types > 0);
    LevelProgram program(problem);
    const auto columns = static_cast<std::size_t>(program.columns());
    const auto rows = static_cast<std::size_t>(program.rows());

    Statuses start;
    if (basis_->types == types) {
        start.assign(columns + rows, ClpSimplex::atLowerBound);
        const std::size_t columns_before = basis_->groups.size() * types + basis_->pairs.size() + 1;
        const std::vector<int> from = inherit(basis_->groups, problem.groups);
        for (std::size_t g = 0; g < groups; ++g) {
            const auto before = static_cast<std::size_t>(from[g]);
            for (std::size_t type = 0; from[g] >= 0 && type < types; ++type) {
                start[g * types + type] = basis_->statuses[before * types + type];
            }
            for (std::size_t row = 0; row < 2; ++row) {
                start[columns + 2 * g + row] =
                    from[g] >= 0 ? basis_->statuses[columns_before + 2 * before + row] : kBasic;
            }
        }
        inherit_pairs(*basis_, problem, from, start);
        start[columns - 1] = basis_->statuses[columns_before - 1];
        for (std::size_t type = 0; type < types; ++type) {
            start[columns + 2 * groups + type] = basis_->statuses[columns_before + 2 * basis_->groups.size() + type];
        }
        repair_basis(start, columns);
    }
    const auto failed = [&] {
        basis_->types = 0;
        return fail(ErrorCode::internal, "the linear program of " + std::to_string(groups) + " kinds of jobs on " +
                                             std::to_string(types) + " types of GPUs ended with CLP's status " +
                                             std::to_string(program.model().status()));
    };
    if (!program.solve_from(start)) return failed();
    basis_->statuses = program.statuses();
    basis_->groups = problem.groups;
    basis_->pairs = problem.pairs;
    basis_->types = types;
    std::vector<bool> binding = program.binding();
    if (spreads_rest && !program.spread_rest()) return failed();
    Shares shares = program.shares();
    shares.binding = std::move(binding);
    return shares;
}

}  // namespace larder::scheduler
