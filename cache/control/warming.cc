#include "cache/control/warming.h"

#include <algorithm>

#include "base/server/logging.h"

namespace larder::cache {

std::optional<Quota> Warming::quota_of(const std::string& dataset) const {
    const auto found = datasets_.all().find(dataset);
    if (found == datasets_.all().end()) return std::nullopt;
    return found->second.record.quota;
}

void Warming::follow(std::span<const std::string> listed) {
    std::erase_if(started_, [&](const auto& entry) {
        if (std::ranges::find(listed, entry.first) != listed.end()) return false;
        if (!entry.second.ended) tasks_.cancel(entry.second.task);
        return true;
    });
    for (const std::string& dataset : listed) {
        const auto quota = quota_of(dataset);
        if (!quota) continue;
        const auto before = started_.find(dataset);
        if (before != started_.end()) {
            Warm& warm = before->second;
            const auto task = tasks_.view(warm.task);
            warm.ended = warm.ended || !task || task->state != TaskState::running;
            if (!warm.ended || warm.quota == *quota) continue;
        }
        const auto task = scans_.start(dataset, ScanKind::warm);
        if (!task) {
            log_info("cannot warm a dataset for a job yet", {{"dataset", dataset}, {"reason", task.error().message}});
            continue;
        }
        started_[dataset] = {.task = *task, .quota = *quota};
    }
}

std::vector<std::string> Warming::warmed() const {
    std::vector<std::string> names;
    names.reserve(started_.size());
    for (const auto& [dataset, warm] : started_) {
        if (warm.ended && quota_of(dataset) == warm.quota) names.push_back(dataset);
    }
    return names;
}

}  // namespace larder::cache
