#pragma once

// A linear program that is built row by row, for CLP.

#include <coin/ClpSimplex.hpp>
#include <coin/CoinPackedMatrix.hpp>

#include <vector>

namespace larder::oracle {

// The rows of a program, in the order they are added.
class Rows {
public:
    // Adds a coefficient to the current row.
    void add(int column, double value) {
        columns_.push_back(column);
        values_.push_back(value);
    }
    void end(double lower, double upper) {
        starts_.push_back(static_cast<int>(columns_.size()));
        lower_.push_back(lower);
        upper_.push_back(upper);
    }
    void load_into(ClpSimplex& model, const std::vector<double>& column_lower, const std::vector<double>& column_upper,
                   const std::vector<double>& cost) const {
        const CoinPackedMatrix matrix(false, static_cast<int>(column_lower.size()), static_cast<int>(lower_.size()),
                                      static_cast<int>(values_.size()), values_.data(), columns_.data(), starts_.data(),
                                      nullptr);
        model.setLogLevel(0);
        model.setPrimalTolerance(1e-9);
        model.setDualTolerance(1e-9);
        model.loadProblem(matrix, column_lower.data(), column_upper.data(), cost.data(), lower_.data(), upper_.data());
    }

private:
    std::vector<int> columns_;
    std::vector<double> values_;
    std::vector<CoinBigIndex> starts_{0};
    std::vector<double> lower_, upper_;
};

}  // namespace larder::oracle
