#include "allocator/linear_program.h"

#include <coin/ClpSimplex.hpp>
#include <coin/CoinPackedMatrix.hpp>

#include <algorithm>
#include <cmath>

namespace larder::allocator {
namespace {

constexpr double kTolerance = 1e-9;

// CLP ends the process at costs of 1e25 and more.
bool is_usable(double number) {
    return std::abs(number) <= 1e20;
}

double clp_bound(double bound) {
    return std::isinf(bound) ? std::copysign(COIN_DBL_MAX, bound) : bound;
}

}  // namespace

int LinearProgram::add_column(double low, double high, double cost) {
    column_low_.push_back(clp_bound(low));
    column_high_.push_back(clp_bound(high));
    cost_.push_back(cost);
    return columns() - 1;
}

void LinearProgram::add(int column, double factor) {
    const auto begin = static_cast<std::size_t>(starts_.back());
    for (std::size_t i = begin; i < term_columns_.size(); ++i) {
        if (term_columns_[i] != column) continue;
        term_factors_[i] += factor;
        return;
    }
    term_columns_.push_back(column);
    term_factors_.push_back(factor);
}

void LinearProgram::end_row(double low, double high) {
    starts_.push_back(static_cast<int>(term_columns_.size()));
    row_low_.push_back(clp_bound(low));
    row_high_.push_back(clp_bound(high));
}

std::optional<std::vector<double>> LinearProgram::minimise() const {
    const auto are = [](const std::vector<double>& numbers, auto&& good) { return std::ranges::all_of(numbers, good); };
    if (!are(cost_, is_usable) || !are(term_factors_, is_usable)) return std::nullopt;
    for (const auto* bounds : {&column_low_, &column_high_, &row_low_, &row_high_}) {
        if (!are(*bounds, [](double bound) { return !std::isnan(bound); })) return std::nullopt;
    }
    const CoinPackedMatrix matrix(false, columns(), static_cast<int>(row_low_.size()),
                                  static_cast<int>(term_factors_.size()), term_factors_.data(), term_columns_.data(),
                                  starts_.data(), nullptr);
    ClpSimplex model;
    model.setLogLevel(0);
    model.setPrimalTolerance(kTolerance);
    model.setDualTolerance(kTolerance);
    model.loadProblem(matrix, column_low_.data(), column_high_.data(), cost_.data(), row_low_.data(), row_high_.data());
    model.dual();
    if (!model.isProvenOptimal()) return std::nullopt;
    const double* const solution = model.primalColumnSolution();
    return std::vector<double>(solution, solution + columns());
}

}  // namespace larder::allocator
