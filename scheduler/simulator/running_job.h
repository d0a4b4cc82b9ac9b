#pragma once

// The simulation's state of a job: what a policy sees of it, what it reads, and its next event.

#include <algorithm>
#include <memory>
#include <vector>

#include "scheduler/simulator/simulated_store.h"
#include "scheduler/simulator/simulation.h"

namespace larder::scheduler {

// The part of a job that reads through one store: all of it or, if every node caches for itself, its GPUs on that node.
struct ReaderPart {
    Store* store = nullptr;
    double fraction = 1;                           // of the job's reads
    std::unique_ptr<SimulatedReader> node_reader;  // null: the job's reader is used
};

struct SimulatedJob {
    JobState state;
    SimulatedReader reader;
    std::vector<ReaderPart> parts;   // empty: the job reads no dataset or does not run
    bool live = false;               // visible to policies
    bool paused = false;             // has GPUs, but loads its checkpoint or starts up
    double ready_s = 0;              // when a paused job begins to read
    double ideal_rate_unshared = 0;  // f* with its present GPUs if no other job shared them
    double shared_part = 1;          // the part of it that is left beside the job that shares them
    double accounted_s = 0;          // add_run() covers the time until then
    std::uint32_t guests = 0;        // number of jobs packed onto its GPUs
    Placement last_placement;        // where it ran, while it waits for its next turn
    std::uint32_t last_gpus = 0;
    bool has_checkpoint = false;
    bool moves = false;       // stopped only to start at once with other GPUs
    bool is_resized = false;  // and goes on with them without a restart
    // The job's next event, at its present rate.
    double next_s = kNever;
    bool finishes_next = false;
    bool ends_hits_next = false;  // the reader has then read the hits that it reads first

    // True if the job has no dataset: it runs at its own rate f*, bound only by its GPUs.
    bool reads_nothing() const { return state.spec->dataset == kNoDataset; }

    void predict(double now_s) {
        next_s = kNever;
        ends_hits_next = false;
        if (paused) {
            next_s = ready_s;
            return;
        }
        if (!(reader.rate > 0)) return;
        const double to_end = reader.remaining_bytes;
        const double to_epoch = reads_nothing() ? kNever : reader.unread_bytes;
        finishes_next = to_end <= to_epoch * (1 + 1e-12);
        next_s = now_s + std::max(0.0, std::min(to_end, to_epoch)) / reader.rate;
        if (!reads_hits_first(reader) || !(reader.hit_ratio > 0)) return;
        const double hits = reader.unread_cached_bytes - reader.substitutes_above_bytes;
        const double hits_end_s = now_s + hits / (reader.rate * reader.hit_ratio);
        ends_hits_next = hits_end_s < next_s;
        next_s = std::min(next_s, hits_end_s);
    }
};

}  // namespace larder::scheduler
