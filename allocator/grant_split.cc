#include "allocator/grant_split.h"

#include <algorithm>

#include "allocator/sorted_indices.h"

namespace larder::allocator {

std::vector<double> split_grant(double grant, std::span<const double> demands, double floor) {
    if (demands.empty()) return {};
    const auto count = static_cast<double>(demands.size());
    const double least = std::min(floor, grant / count);
    std::vector<double> parts(demands.size(), least);
    double left = grant - least * count;
    double unserved = count;
    for (const std::uint32_t node : ascending(demands)) {
        const double more = std::clamp(demands[node] - least, 0.0, std::max(0.0, left / unserved));
        parts[node] += more;
        left -= more;
        unserved -= 1;
    }
    for (double& part : parts) part += left / count;
    return parts;
}

}  // namespace larder::allocator
