#include "scheduler/simulator/node_bounds.h"

#include "allocator/rate_limits.h"

namespace larder::scheduler {
namespace {

class Bounds {
public:
    // `jobs`: the jobs of state.readers, in the same order. `hits`: their hit ratios.
    Bounds(const ReadersState& state, std::span<SimulatedJob* const> jobs, std::span<const double> hits)
        : limits_(jobs.size()) {
        const auto nodes = static_cast<double>(state.nodes.size());
        for (std::size_t n = 0; n < state.nodes.size(); ++n) {
            nic_in_.push_back(limits_.add(state.node_nic_bytes_per_second));
            disk_.push_back(limits_.add(state.node_disk_bytes_per_second));
            if (state.caches_by_job) nic_out_.push_back(limits_.add(state.node_nic_bytes_per_second));
        }
        const std::uint32_t all_out = limits_.add(state.node_nic_bytes_per_second * nodes);
        const std::uint32_t all_disks = limits_.add(state.node_disk_bytes_per_second * nodes);
        for (std::uint32_t j = 0; j < jobs.size(); ++j) {
            if (jobs[j]->parts.front().store->node != kAllNodes) {
                use_node_caches(state, j, *jobs[j], hits[j]);
            } else if (state.caches_by_job) {
                use_own_nodes(state, j, *jobs[j], hits[j]);
            } else {
                const double fetched = (1 - hits[j]) * jobs[j]->reader.fetch_part;
                const double gpus = gpu_count(*state.placements[j]);
                for (const NodeGpus& share : *state.placements[j]) {
                    const double part = share.count() / gpus;
                    limits_.use(nic_in_[share.node], j, part * (fetched + (1 - fetched) * (1 - 1 / nodes)));
                }
                limits_.use(all_out, j, (1 - fetched) * (1 - 1 / nodes));
                limits_.use(all_disks, j, 1 - fetched);
            }
        }
        limits_.finish();
    }

    // Returns the rates, with all jobs that use an exceeded bound slowed down by the same factor.
    std::vector<double> bounded_rates(const std::vector<double>& rates) const {
        const std::vector<double> low(rates.size());
        return limits_.fits(rates) ? rates : limits_.fill(low, rates, rates);
    }

private:
    // Each node caches for itself.
    void use_node_caches(const ReadersState& state, std::uint32_t j, const SimulatedJob& job, double hits) {
        const double gpus = gpu_count(*state.placements[j]);
        for (std::size_t i = 0; i < state.placements[j]->size(); ++i) {
            const NodeGpus& share = (*state.placements[j])[i];
            const double part = share.count() / gpus;
            const SimulatedReader* node_reader = job.parts[i].node_reader.get();
            const double node_hits = node_reader == nullptr ? hits : rest_hit_ratio(*node_reader);
            limits_.use(nic_in_[share.node], j, part * (1 - node_hits));
            limits_.use(disk_[share.node], j, part * node_hits);
        }
    }

    // The job's cache lies on its own nodes, by its GPUs there. What another job fetches for it is in memory.
    void use_own_nodes(const ReadersState& state, std::uint32_t j, const SimulatedJob& job, double hits) {
        const double fetched = (1 - hits) * job.reader.fetch_part;
        const double gpus = gpu_count(*state.placements[j]);
        for (const NodeGpus& share : *state.placements[j]) {
            const double part = share.count() / gpus;
            limits_.use(nic_in_[share.node], j, part * (fetched + hits * (1 - part)));
            limits_.use(nic_out_[share.node], j, part * hits * (1 - part));
            limits_.use(disk_[share.node], j, part * hits);
        }
    }

    allocator::RateLimits limits_;
    std::vector<std::uint32_t> nic_in_;  // by node
    std::vector<std::uint32_t> nic_out_;
    std::vector<std::uint32_t> disk_;
};

}  // namespace

bool has_node_bounds(const SimulationOptions& options) {
    return options.node_disk_bytes_per_second < kNever || options.node_nic_bytes_per_second < kNever;
}

void bound_ideals(const ReadersState& state, std::span<SimulatedJob* const> jobs) {
    std::vector<double> ideals;
    std::vector<double> hits;
    ideals.reserve(jobs.size());
    hits.reserve(jobs.size());
    for (const SimulatedReader* reader : state.readers) {
        ideals.push_back(reader->ideal);
        hits.push_back(state.stores_set_hits ? rest_hit_ratio(*reader) : reader->hit_ratio);
    }
    const std::vector<double> bounded = Bounds(state, jobs, hits).bounded_rates(ideals);
    for (std::size_t i = 0; i < bounded.size(); ++i) state.readers[i]->ideal = bounded[i];
}

void bound_rates(const ReadersState& state, std::span<SimulatedJob* const> jobs) {
    std::vector<double> rates;
    std::vector<double> hits;
    rates.reserve(jobs.size());
    hits.reserve(jobs.size());
    for (const SimulatedReader* reader : state.readers) {
        rates.push_back(reader->rate);
        hits.push_back(reader->hit_ratio);
    }
    const std::vector<double> bounded = Bounds(state, jobs, hits).bounded_rates(rates);
    constexpr double kRounding = 1e-9;
    for (std::size_t i = 0; i < bounded.size(); ++i) {
        SimulatedReader& reader = *state.readers[i];
        if (bounded[i] < reader.rate * (1 - kRounding)) reader.cap = bounded[i];
        reader.rate = bounded[i];
    }
}

}  // namespace larder::scheduler
