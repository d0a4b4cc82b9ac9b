#include "scheduler/simulator/node_bounds.h"

#include "allocator/rate_limits.h"

namespace larder::scheduler {
namespace {

class Bounds {
public:
    // `jobs`: the jobs of state.readers, in the same order.
    Bounds(const ReadersState& state, std::span<SimulatedJob* const> jobs) : limits_(jobs.size()) {
        const auto nodes = static_cast<double>(state.nodes.size());
        std::vector<std::uint32_t> nic_in;
        std::vector<std::uint32_t> disk;
        for (std::size_t n = 0; n < state.nodes.size(); ++n) {
            nic_in.push_back(limits_.add(state.node_nic_bytes_per_second));
            disk.push_back(limits_.add(state.node_disk_bytes_per_second));
        }
        const std::uint32_t all_out = limits_.add(state.node_nic_bytes_per_second * nodes);
        const std::uint32_t all_disks = limits_.add(state.node_disk_bytes_per_second * nodes);
        for (std::uint32_t j = 0; j < jobs.size(); ++j) {
            const SimulatedJob& job = *jobs[j];
            const bool has_node_caches = job.parts.front().store->node != kAllNodes;
            const double hits = rest_hit_ratio(job.reader);
            const double gpus = gpu_count(*state.placements[j]);
            for (std::size_t i = 0; i < state.placements[j]->size(); ++i) {
                const NodeGpus& share = (*state.placements[j])[i];
                const double part = share.count() / gpus;
                const SimulatedReader* node_reader = has_node_caches ? job.parts[i].node_reader.get() : nullptr;
                const double node_hits = !has_node_caches         ? hits / nodes
                                         : node_reader == nullptr ? hits
                                                                  : rest_hit_ratio(*node_reader);
                limits_.use(nic_in[share.node], j, part * (1 - node_hits));
                if (has_node_caches) limits_.use(disk[share.node], j, part * node_hits);
            }
            if (has_node_caches) continue;
            limits_.use(all_out, j, hits * (1 - 1 / nodes));
            limits_.use(all_disks, j, hits);
        }
        limits_.finish();
    }

    // Returns the rates, with all jobs that use an exceeded bound slowed down by the same factor.
    std::vector<double> bounded_rates(const std::vector<double>& rates) const {
        const std::vector<double> low(rates.size());
        return limits_.fits(rates) ? rates : limits_.fill(low, rates, rates);
    }

private:
    allocator::RateLimits limits_;
};

}  // namespace

bool has_node_bounds(const SimulationOptions& options) {
    return options.node_disk_bytes_per_second < kNever || options.node_nic_bytes_per_second < kNever;
}

void bound_ideals(const ReadersState& state, std::span<SimulatedJob* const> jobs) {
    std::vector<double> ideals;
    ideals.reserve(jobs.size());
    for (const SimulatedReader* reader : state.readers) ideals.push_back(reader->ideal);
    const std::vector<double> bounded = Bounds(state, jobs).bounded_rates(ideals);
    for (std::size_t i = 0; i < bounded.size(); ++i) state.readers[i]->ideal = bounded[i];
}

void bound_rates(const ReadersState& state, std::span<SimulatedJob* const> jobs) {
    std::vector<double> rates;
    rates.reserve(jobs.size());
    for (const SimulatedReader* reader : state.readers) rates.push_back(reader->rate);
    const std::vector<double> bounded = Bounds(state, jobs).bounded_rates(rates);
    constexpr double kRounding = 1e-9;
    for (std::size_t i = 0; i < bounded.size(); ++i) {
        SimulatedReader& reader = *state.readers[i];
        if (bounded[i] < reader.rate * (1 - kRounding)) reader.cap = bounded[i];
        reader.rate = bounded[i];
    }
}

}  // namespace larder::scheduler
