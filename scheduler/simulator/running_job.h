#pragma once

// A job as the simulation keeps it: what a policy sees of it, what it reads, and when it next does something.

#include <algorithm>
#include <memory>
#include <vector>

#include "scheduler/simulator/simulation.h"
#include "scheduler/simulator/store.h"

namespace larder::scheduler {

// What a job reads through one store: all of it, or, where every node caches for itself, what its GPUs there read.
struct ReaderPart {
    Store* store = nullptr;
    double part = 1;
    std::unique_ptr<Reader> own;  // null: the job's
};

struct SimulatedJob {
    JobState state;
    Reader reader;
    std::vector<ReaderPart> parts;  // empty: it reads no dataset, or does not run
    bool live = false;              // a policy may see it
    bool paused = false;            // has GPUs, but loads its checkpoint or starts up
    double ready_s = 0;             // while paused
    double ideal_full = 0;          // f* with its GPUs where they are
    double accounted_s = 0;         // add_run() was told until then
    double guests = 0;              // jobs packed onto its GPUs
    Placement last_placement;       // while it waits for its next turn
    std::uint32_t last_gpus = 0;
    bool has_checkpoint = false;
    bool moves = false;  // stopped to start with other GPUs at once
    // The next thing it does by itself, at the rate it has.
    double next_s = kNever;
    bool finishes_next = false;

    // Reads the dataset at its own rate f*, and nothing binds but GPUs.
    bool reads_nothing() const { return state.spec->dataset == kNoDataset; }

    void predict(double now_s) {
        next_s = kNever;
        if (paused) {
            next_s = ready_s;
            return;
        }
        if (!(reader.rate > 0)) return;
        const double to_end = reader.remaining_bytes;
        const double to_epoch = reads_nothing() ? kNever : reader.unread_bytes;
        finishes_next = to_end <= to_epoch * (1 + 1e-12);
        next_s = now_s + std::max(0.0, std::min(to_end, to_epoch)) / reader.rate;
    }
};

}  // namespace larder::scheduler
