#pragma once

// A job's remote bandwidth over the nodes it runs on.

#include <span>
#include <vector>

namespace larder::allocator {

// Splits `grant` (bytes per second) by what each node asks for. Nobody gets less than `floor` (or an equal part, where
// the floors are more than the grant), so that a node whose demand is not known yet can show it; what is left goes up
// to the demands, the smallest filled first (water-filling); what is then still left goes to all in equal parts. The
// sum is the grant. Demands are finite and not negative; no node: nothing.
std::vector<double> split_grant(double grant, std::span<const double> demands, double floor);

}  // namespace larder::allocator
