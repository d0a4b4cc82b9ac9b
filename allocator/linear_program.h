#pragma once

// A small linear program, built row by row and solved by CLP. Numbers near 1 keep it exact.

#include <limits>
#include <optional>
#include <vector>

namespace larder::allocator {

class LinearProgram {
public:
    static constexpr double kNoBound = std::numeric_limits<double>::infinity();

    // Adds a variable between two bounds, and returns its number.
    int add_column(double low, double high, double cost = 0);
    int columns() const { return static_cast<int>(column_low_.size()); }
    // Adds a term to the row that end_row() ends. A column may have several terms in a row.
    void add(int column, double factor);
    // Bounds the sum of the row's terms.
    void end_row(double low, double high);
    // Returns the values of all columns with the least sum of cost * value; nullopt if there are none within the
    // bounds, or if a cost or a factor is not a number between -1e20 and 1e20.
    std::optional<std::vector<double>> minimise() const;

private:
    std::vector<double> column_low_, column_high_, cost_;
    std::vector<int> starts_{0};
    std::vector<int> term_columns_;
    std::vector<double> term_factors_;
    std::vector<double> row_low_, row_high_;
};

}  // namespace larder::allocator
