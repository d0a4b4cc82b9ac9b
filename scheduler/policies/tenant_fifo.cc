#include "scheduler/policies/tenant_fifo.h"

#include "scheduler/policies/wants.h"

namespace larder::scheduler {

Result<Decision> TenantFifo::decide(const Snapshot& snapshot) {
    Decision decision;
    decision.blocks_tenant = true;
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        if (snapshot.jobs[j]->running) decision.wants.push_back(want_as_it_is(snapshot, j));
    }
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        if (!snapshot.jobs[j]->running) decision.wants.push_back(want_as_it_is(snapshot, j));
    }
    return decision;
}

}  // namespace larder::scheduler
