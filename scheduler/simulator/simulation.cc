#include "scheduler/simulator/simulation.h"

#include "scheduler/simulator/simulation_run.h"

namespace larder::scheduler {

Result<SimulationOutcome> simulate(const Workload& workload, const GpuCluster& cluster, Policy& policy, Placer& placer,
                                   const SimulationOptions& options) {
    const CacheKind cache = options.cache.cache;
    if (options.reported_plans && (cache != CacheKind::uniform || options.cache.bandwidth != BandwidthKind::joint)) {
        return fail(ErrorCode::invalid_argument, "reported plans need cache uniform+joint, not " + name(options.cache));
    }
    if (options.reported_plans && options.checkpoints_share_remote) {
        return fail(ErrorCode::invalid_argument,
                    "reported plans do not know of checkpoints that take bandwidth from the remote");
    }
    if (options.cache.own_caches && cache != CacheKind::uniform && cache != CacheKind::none) {
        return fail(ErrorCode::invalid_argument,
                    "nodes with their own caches need cache uniform or none, not " + name(options.cache));
    }
    return SimulationRun(workload, cluster, policy, placer, options).run();
}

}  // namespace larder::scheduler
