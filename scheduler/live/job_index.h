#pragma once

// Some of a queue's jobs, in the order of their ids. The queue goes over thousands of them several times for each
// decision: two arrays are quicker to go over than a tree, and lead to the records without a search. A change of the
// index ends all iterators and spans. The queue owns the records: an entry is erased before its record.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "scheduler/live/job_record.h"

namespace larder::scheduler {

class JobIndex {
public:
    // Does nothing if the job is there already.
    void insert(JobRecord& job) {
        if (ids_.empty() || ids_.back() < job.id) {  // new jobs come last
            ids_.push_back(job.id);
            records_.push_back(&job);
            return;
        }
        const auto at = std::ranges::lower_bound(ids_, job.id);
        const auto index = at - ids_.begin();
        if (*at == job.id) return;
        ids_.insert(at, job.id);
        records_.insert(records_.begin() + index, &job);
    }
    void erase(JobId id) {
        const auto at = std::ranges::lower_bound(ids_, id);
        if (at == ids_.end() || *at != id) return;
        records_.erase(records_.begin() + (at - ids_.begin()));
        ids_.erase(at);
    }
    // Returns null if the job is not there.
    JobRecord* find(JobId id) {
        const auto at = std::ranges::lower_bound(ids_, id);
        return at == ids_.end() || *at != id ? nullptr : records_[static_cast<std::size_t>(at - ids_.begin())];
    }
    // Returns the ids of some jobs, for a loop that changes the index. Such a loop looks at each job again.
    template <typename Condition>
    std::vector<JobId> ids_if(const Condition& condition) const {
        std::vector<JobId> ids;
        for (const JobRecord* const job : records_) {
            if (condition(*job)) ids.push_back(job->id);
        }
        return ids;
    }
    bool contains(JobId id) const { return std::ranges::binary_search(ids_, id); }
    std::size_t size() const { return ids_.size(); }
    bool empty() const { return ids_.empty(); }

    const std::vector<JobId>& ids() const { return ids_; }
    auto begin() const { return ids_.begin(); }
    auto end() const { return ids_.end(); }
    std::span<JobRecord* const> records() { return records_; }
    std::span<const JobRecord* const> records() const { return records_; }

private:
    std::vector<JobId> ids_;
    std::vector<JobRecord*> records_;  // likewise
};

}  // namespace larder::scheduler
