#include "bench/joint_scenario.h"

#include "allocator/protocol/objective.h"

namespace larder::bench {

std::vector<std::string> joint_objectives() {
    using allocator::ObjectiveKind;
    std::vector<std::string> names;
    for (const ObjectiveKind kind : {ObjectiveKind::equal_shares, ObjectiveKind::max_min, ObjectiveKind::efficiency}) {
        names.emplace_back(allocator::name(kind));
    }
    return names;
}

std::vector<std::string> joint_policies() {
    std::vector<std::string> policies = joint_objectives();
    policies.insert(policies.begin() + 1, "lru");
    return policies;
}

std::vector<std::string> reality_policies() {
    std::vector<std::string> policies = joint_objectives();
    policies.push_back(std::string(allocator::name(allocator::ObjectiveKind::max_min)).append(kPeersSuffix));
    policies.emplace_back("lru");
    return policies;
}

JointScenario joint_scenario(bool quick) {
    // A quick run is the same cluster at half the rates, with all sizes a sixteenth as large. Only the block size is a
    // quarter, so that there are fewer blocks. Each block is a file, and writing many files is slow where many were
    // just removed.
    const auto blocks = [&](std::uint32_t mib) { return mib * (quick ? 4 : 16); };
    const auto rate = [&](double mb_per_second) { return mb_per_second * (quick ? 5e5 : 1e6); };
    JointScenario scenario;
    scenario.block_bytes = quick ? 16 << 10 : 64 << 10;
    scenario.batch_size = 8;
    scenario.node_cache_bytes = (std::uint64_t{96} << 20) / (quick ? 16 : 1);
    scenario.remote_bytes_per_second = rate(60);
    scenario.epochs = quick ? 2 : 6;
    scenario.patience_s = quick ? 10 : 180;
    scenario.datasets = {{"images", blocks(160)},
                         {"speech", blocks(96)},
                         {"text", blocks(128)},
                         {"video", blocks(192)},
                         {"scans", blocks(144)}};
    scenario.jobs = {{"images-large", 0, 0, rate(60)}, {"images-small", 0, 0, rate(20)}, {"speech", 1, 1, rate(30)},
                     {"text", 1, 2, rate(12)},         {"video", 2, 3, rate(40)},        {"scans", 3, 4, rate(14)}};
    return scenario;
}

JointScenario joint_events_scenario(bool quick) {
    const std::uint32_t size_factor = quick ? 1 : 3;
    JointScenario scenario = joint_scenario(quick);
    for (JointDataset& dataset : scenario.datasets) dataset.blocks *= size_factor;
    const std::uint64_t cache_bytes = scenario.node_cache_bytes * size_factor;
    scenario.node_disk_bytes = cache_bytes / 2;
    scenario.node_cache_bytes = cache_bytes - scenario.node_disk_bytes;
    return scenario;
}

}  // namespace larder::bench
