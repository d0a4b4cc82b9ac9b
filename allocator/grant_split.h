#pragma once

// Splits a job's remote bandwidth over the nodes it runs on.

#include <span>
#include <vector>

namespace larder::allocator {

// Splits `grant` (bytes per second) by the nodes' demands. Each node gets at least `floor`, or an equal part if the
// floors exceed the grant, so that a node of unknown demand has the bandwidth to show its demand. The rest is filled up
// to the demands, the smallest first (water-filling). Any bandwidth still left goes to all nodes in equal parts. The
// sum is the grant. Demands are finite and not negative. Returns an empty vector if there is no node.
std::vector<double> split_grant(double grant, std::span<const double> demands, double floor);

}  // namespace larder::allocator
