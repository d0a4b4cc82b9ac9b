#include "allocator/grant_split.h"

#include <algorithm>
#include <numeric>

namespace larder::allocator {

std::vector<double> split_grant(double grant, std::span<const double> demands, double floor) {
    if (demands.empty()) return {};
    const auto count = static_cast<double>(demands.size());
    const double least = std::min(floor, grant / count);
    std::vector<double> parts(demands.size(), least);
    double left = grant - least * count;
    std::vector<std::size_t> order(demands.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return demands[a] < demands[b]; });
    double unserved = count;
    for (const std::size_t node : order) {
        const double more = std::clamp(demands[node] - least, 0.0, std::max(0.0, left / unserved));
        parts[node] += more;
        left -= more;
        unserved -= 1;
    }
    for (double& part : parts) part += left / count;
    return parts;
}

}  // namespace larder::allocator
