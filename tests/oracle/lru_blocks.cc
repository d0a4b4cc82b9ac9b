#include "tests/oracle/lru_blocks.h"

#include <numeric>
#include <utility>

namespace larder::oracle {

LruBlocks::LruBlocks(std::size_t capacity, std::vector<Job> jobs) : capacity_(capacity), jobs_(std::move(jobs)) {
    for (Job& job : jobs_) begin(job);
    // Starts jobs out of step, like jobs started at different times.
    for (Job& job : jobs_) job.next = random_.below(job.blocks);
}

void LruBlocks::run(std::size_t rounds, bool count_hits) {
    for (std::size_t round = 0; round < rounds; ++round) {
        for (Job& job : jobs_) read(job, job.rate, count_hits);
    }
}

void LruBlocks::take_turns(std::size_t turns, std::size_t reads, bool count_hits) {
    for (std::size_t turn = 0; turn < turns * jobs_.size(); ++turn) read(jobs_[turn % jobs_.size()], reads, count_hits);
}

void LruBlocks::read(Job& job, std::size_t blocks, bool count_hits) {
    for (std::size_t i = 0; i < blocks; ++i) {
        const bool hit = touch((std::uint64_t{job.dataset} << 32) | job.order[job.next++]);
        if (count_hits) {
            job.hits += hit ? 1 : 0;
            ++job.reads;
        }
        if (job.next == job.blocks) begin(job);
    }
}

void LruBlocks::begin(Job& job) {
    job.order.resize(job.blocks);
    std::iota(job.order.begin(), job.order.end(), 0);
    for (std::size_t i = job.blocks; i > 1; --i) std::swap(job.order[i - 1], job.order[random_.below(i)]);
    job.next = 0;
}

bool LruBlocks::touch(std::uint64_t block) {
    const auto found = places_.find(block);
    const bool hit = found != places_.end();
    if (hit) order_.erase(found->second);
    order_.push_front(block);
    places_[block] = order_.begin();
    if (places_.size() > capacity_) {
        places_.erase(order_.back());
        order_.pop_back();
    }
    return hit;
}

}  // namespace larder::oracle
