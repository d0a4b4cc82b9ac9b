#pragma once

// The rate of a gang at a place, as a part of its full rate: the lower of two limits, the communication between its
// nodes and the delivery of its data. Reads from a node's own cache pass neither the NIC nor the remote. So if a part p
// of its GPUs is on nodes that hold its data, a link that allows the part r of the full rate with no data near allows r
// / (1 - p): the model's b / (1 - h) (SiloD, EuroSys '23), with p for h. The lower limit tells a placer whether to look
// for few nodes or for near ones.

#include "scheduler/placement/placer.h"

namespace larder::scheduler {

// `nodes_least`: the fewest nodes that the gang would need in an empty cluster. `near_gpus`: how many of its GPUs are
// near its data.
double gang_rate(const PlaceRequest& request, std::uint32_t nodes, std::uint32_t nodes_least, std::uint32_t near_gpus);

}  // namespace larder::scheduler
