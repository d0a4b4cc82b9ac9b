#include "scheduler/policies/similar_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <queue>
#include <tuple>
#include <vector>

namespace larder::scheduler {
namespace {

class Boxes {
public:
    Boxes(std::span<double> rows, std::size_t width, std::size_t exact)
        : rows_(rows), width_(width), exact_(exact), order_(rows.size() / width) {
        std::iota(order_.begin(), order_.end(), 0U);
        std::ranges::stable_sort(order_, [&](std::uint32_t a, std::uint32_t b) { return compare(a, b) < 0; });
        for (std::uint32_t begin = 0, end = 0; begin < order_.size(); begin = end) {
            while (end < order_.size() && compare(order_[begin], order_[end]) == 0) ++end;
            boxes_.push(make_box(begin, end));
        }
    }

    void divide(std::size_t kinds_max) {
        while (boxes_.size() < kinds_max && boxes_.top().error > 0) {
            const Box box = boxes_.top();
            boxes_.pop();
            const auto high =
                std::stable_partition(order_.begin() + box.begin, order_.begin() + box.end,
                                      [&](std::uint32_t row) { return at(row, box.column) <= box.threshold; });
            const auto split = static_cast<std::uint32_t>(high - order_.begin());
            boxes_.push(make_box(box.begin, split));
            boxes_.push(make_box(split, box.end));
        }
    }

    void replace_by_means() {
        for (; !boxes_.empty(); boxes_.pop()) {
            const Box& box = boxes_.top();
            if (box.error <= 0) continue;
            for (std::size_t column = exact_; column < width_; ++column) {
                double sum = 0;
                for (std::uint32_t i = box.begin; i < box.end; ++i) sum += at(order_[i], column);
                for (std::uint32_t i = box.begin; i < box.end; ++i) at(order_[i], column) = sum / (box.end - box.begin);
            }
        }
    }

private:
    struct Box {
        double error = 0;  // the relative spread of `column`, times the number of rows
        std::uint32_t begin = 0;
        std::uint32_t end = 0;
        std::size_t column = 0;  // the column that its rows differ most in
        double threshold = 0;    // divides the rows by `column`

        bool operator<(const Box& other) const {
            return std::tuple(error, other.begin) < std::tuple(other.error, begin);
        }
    };

    double& at(std::uint32_t row, std::size_t column) { return rows_[row * width_ + column]; }

    // Compares two rows by what a box must not mix: the exact numbers, and for each other number whether it is 0.
    int compare(std::uint32_t a, std::uint32_t b) {
        for (std::size_t column = 0; column < width_; ++column) {
            const double x = column < exact_ ? at(a, column) : at(a, column) == 0 ? 0 : 1;
            const double y = column < exact_ ? at(b, column) : at(b, column) == 0 ? 0 : 1;
            if (x != y) return x < y ? -1 : 1;
        }
        return 0;
    }

    Box make_box(std::uint32_t begin, std::uint32_t end) {
        Box box{.begin = begin, .end = end};
        double widest = 0;
        for (std::size_t column = exact_; column < width_; ++column) {
            double low = at(order_[begin], column);
            double high = low;
            for (std::uint32_t i = begin; i < end; ++i) {
                low = std::min(low, at(order_[i], column));
                high = std::max(high, at(order_[i], column));
            }
            if (high <= 0 || (high - low) / high <= widest) continue;
            widest = (high - low) / high;
            box.column = column;
            // At least `low` and less than `high`, whatever the rounding.
            box.threshold = std::clamp(std::sqrt(low) * std::sqrt(high), low, std::nextafter(high, 0.0));
        }
        box.error = widest * (end - begin);
        return box;
    }

    std::span<double> rows_;
    std::size_t width_;
    std::size_t exact_;
    std::vector<std::uint32_t> order_;
    std::priority_queue<Box> boxes_;
};

}  // namespace

void merge_similar_rows(std::span<double> rows, std::size_t width, std::size_t exact, std::size_t kinds_max) {
    if (rows.empty()) return;
    Boxes boxes(rows, width, exact);
    boxes.divide(kinds_max);
    boxes.replace_by_means();
}

}  // namespace larder::scheduler
