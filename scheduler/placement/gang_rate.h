#pragma once

// What a gang would make of a place, as part of its full rate: the lower of what communication between so many nodes
// leaves it, and of what its data can be brought at. Whatever is read from a node's own cache passes neither the NIC
// nor the remote, so with a part p of its GPUs on nodes that hold its data, a link that alone carries r of the full
// rate carries r / (1 - p): the model's b / (1 - h) (SiloD, EuroSys '23), with p for h. Which of the two binds says
// whether a placer looks for few nodes or for near ones.

#include "scheduler/placement/placer.h"

namespace larder::scheduler {

// `nodes_least`: on how few nodes it could lie in an empty cluster. `near_gpus`: how many of its GPUs are near its
// data.
double gang_rate(const PlaceRequest& request, std::uint32_t nodes, std::uint32_t nodes_least, std::uint32_t near_gpus);

}  // namespace larder::scheduler
