#pragma once

// One LRU cache, block by block. Jobs take turns by their rates and read datasets in a fresh random order each epoch.
// Tests compare the simulator's closed forms with it. Results are the same on every machine.

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "scheduler/simulator/random.h"

namespace larder::oracle {

class LruBlocks {
public:
    struct Job {
        std::uint32_t dataset = 0;
        std::size_t blocks = 0;
        std::size_t rate = 1;  // blocks per round
        std::vector<std::size_t> order{};
        std::size_t next = 0;  // index in `order`
        double hits = 0;
        double reads = 0;
    };

    LruBlocks(std::size_t capacity, std::vector<Job> jobs);

    void run(std::size_t rounds, bool count_hits);
    // Lets the jobs read one after another, `reads` blocks in each turn.
    void take_turns(std::size_t turns, std::size_t reads, bool count_hits);
    const std::vector<Job>& jobs() const { return jobs_; }

private:
    void read(Job& job, std::size_t blocks, bool count_hits);
    void begin(Job& job);
    bool touch(std::uint64_t block);

    std::size_t capacity_;
    std::vector<Job> jobs_;
    scheduler::Random random_{7};
    std::list<std::uint64_t> order_;
    std::unordered_map<std::uint64_t, std::list<std::uint64_t>::iterator> places_;
};

}  // namespace larder::oracle
