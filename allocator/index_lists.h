#pragma once

// Lists of indices, one for each owner: the jobs on each node, for example. All lists share one array, because
// thousands of short vectors take long to make and to free.

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace larder::allocator {

class IndexLists {
public:
    IndexLists() = default;
    // `for_each` calls its argument with (owner, index) for all pairs, each time in the same order, which is that of
    // the lists. Owners are below `owners`.
    template <typename ForEach>
    IndexLists(std::size_t owners, const ForEach& for_each) : ends_(owners + 1) {
        for_each([&](std::uint32_t owner, std::uint32_t) { ++ends_[owner + 1]; });
        std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
        indices_.resize(ends_.back());
        std::vector<std::uint32_t> next(ends_.begin(), ends_.end() - 1);
        for_each([&](std::uint32_t owner, std::uint32_t index) { indices_[next[owner]++] = index; });
    }

    std::span<const std::uint32_t> of(std::uint32_t owner) const {
        return std::span(indices_).subspan(ends_[owner], ends_[owner + 1] - ends_[owner]);
    }

private:
    std::vector<std::uint32_t> indices_;
    std::vector<std::uint32_t> ends_ = {0};  // [i]: the end of list i - 1, which is where list i begins
};

}  // namespace larder::allocator
