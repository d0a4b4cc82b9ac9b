#pragma once

// The textbook simplex method on a dense tableau, with Bland's rule (Math. of OR, 1977). It maximises objective * x
// with rows * x <= bounds, x >= 0 and bounds >= 0, for a few columns. Tests compare the policies' programs with it.

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace larder::scheduler::tests {

// Returns the largest value of the objective; infinity if it has no bound.
inline double largest_value(const std::vector<double>& objective, const std::vector<std::vector<double>>& rows,
                            const std::vector<double>& bounds) {
    const std::size_t columns = objective.size() + rows.size();
    std::vector<std::vector<double>> tableau;
    std::vector<std::size_t> basis;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        std::vector<double> line = rows[i];
        line.resize(columns + 1);
        line[objective.size() + i] = 1;
        line[columns] = bounds[i];
        tableau.push_back(line);
        basis.push_back(objective.size() + i);
    }
    std::vector<double> gains = objective;
    gains.resize(columns + 1);
    for (;;) {
        std::size_t entering = 0;
        while (entering < columns && gains[entering] <= 1e-10) ++entering;
        if (entering == columns) return -gains[columns];
        std::size_t leaving = tableau.size();
        double least = std::numeric_limits<double>::infinity();
        for (std::size_t i = 0; i < tableau.size(); ++i) {
            if (tableau[i][entering] <= 1e-10) continue;
            const double ratio = tableau[i][columns] / tableau[i][entering];
            const bool first = leaving == tableau.size() || basis[i] < basis[leaving];
            if (ratio < least - 1e-12 || (ratio <= least + 1e-12 && first)) {
                least = std::min(least, ratio);
                leaving = i;
            }
        }
        if (leaving == tableau.size()) return std::numeric_limits<double>::infinity();
        const double pivot = tableau[leaving][entering];
        for (double& value : tableau[leaving]) value /= pivot;
        const auto subtract = [&](std::vector<double>& line) {
            const double factor = line[entering];
            for (std::size_t k = 0; k <= columns; ++k) line[k] -= factor * tableau[leaving][k];
        };
        for (std::size_t i = 0; i < tableau.size(); ++i) {
            if (i != leaving) subtract(tableau[i]);
        }
        subtract(gains);
        basis[leaving] = entering;
    }
}

}  // namespace larder::scheduler::tests
