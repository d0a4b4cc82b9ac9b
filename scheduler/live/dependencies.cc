#include "scheduler/live/dependencies.h"

#include <algorithm>

namespace larder::scheduler {
namespace {

enum class Seen : std::uint8_t { no, on_path, done };

std::string shown_name(const Submission& job, JobId id) {
    return job.name.empty() ? std::to_string(id) : job.name;
}

// Searches for cycles depth first, over jobs of the submission only, because earlier jobs wait for none of them.
class CycleFinder {
public:
    CycleFinder(std::span<const Submission> jobs, const std::vector<std::vector<JobId>>& after, JobId first_id)
        : jobs_(jobs), after_(after), first_id_(first_id), seen_(jobs.size()) {}

    std::optional<std::string> find() {
        for (std::size_t j = 0; j < jobs_.size(); ++j) {
            if (auto cycle = find_from(j)) return cycle;
        }
        return std::nullopt;
    }

private:
    // A step of the path: a job, and the index of the next job that it waits for.
    struct Step {
        std::size_t job;
        std::size_t next = 0;
    };

    std::optional<std::string> find_from(std::size_t start) {
        if (seen_[start] != Seen::no) return std::nullopt;
        std::vector<Step> path{{start}};
        seen_[start] = Seen::on_path;
        while (!path.empty()) {
            Step& at = path.back();
            if (at.next == after_[at.job].size()) {
                seen_[at.job] = Seen::done;
                path.pop_back();
                continue;
            }
            const JobId waits_for = after_[at.job][at.next++];
            if (waits_for < first_id_) continue;
            const auto other = static_cast<std::size_t>(waits_for - first_id_);
            if (seen_[other] == Seen::on_path) return spell_out(path, other);
            if (seen_[other] == Seen::no) {
                seen_[other] = Seen::on_path;
                path.push_back({other});
            }
        }
        return std::nullopt;
    }

    std::string spell_out(const std::vector<Step>& path, std::size_t closes_at) const {
        const auto begin = std::ranges::find(path, closes_at, &Step::job);
        std::string text;
        for (auto at = begin; at != path.end(); ++at)
            text += shown_name(jobs_[at->job], first_id_ + at->job) + " after ";
        return text + shown_name(jobs_[closes_at], first_id_ + closes_at);
    }

    std::span<const Submission> jobs_;
    const std::vector<std::vector<JobId>>& after_;
    JobId first_id_;
    std::vector<Seen> seen_;
};

}  // namespace

Result<std::vector<std::vector<JobId>>> resolve_dependencies(std::span<const Submission> jobs, JobId first_id,
                                                             const FindEarlierJob& find) {
    std::vector<std::vector<JobId>> after(jobs.size());
    for (std::size_t j = 0; j < jobs.size(); ++j) {
        for (const std::string& name : jobs[j].after) {
            const auto sibling = std::ranges::find(jobs, name, &Submission::name);
            if (sibling != jobs.end() && !name.empty()) {
                after[j].push_back(first_id + static_cast<JobId>(sibling - jobs.begin()));
                continue;
            }
            const auto earlier = find(name);
            if (!earlier) {
                return fail(ErrorCode::not_found, "after: there is no job \"" + name + "\" to wait for");
            }
            if (earlier->succeeded) continue;
            if (!earlier->ended.empty()) {
                return fail(ErrorCode::changed, "after: job \"" + name + "\" " + earlier->ended +
                                                    " already, so it cannot succeed any more");
            }
            after[j].push_back(earlier->id);
        }
        std::ranges::sort(after[j]);
        const auto same = std::ranges::unique(after[j]);
        after[j].erase(same.begin(), same.end());
    }
    if (const auto cycle = CycleFinder(jobs, after, first_id).find()) {
        return fail(ErrorCode::invalid_argument, "after: the jobs wait for each other in a circle: " + *cycle);
    }
    return after;
}

}  // namespace larder::scheduler
