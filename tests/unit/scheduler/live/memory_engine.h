#pragma once

// An engine without processes. It records the calls it gets, and the test chooses its events.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/live/engine.h"

namespace larder::scheduler {

class MemoryEngine final : public Engine {
public:
    using Attempt = std::pair<JobId, std::uint32_t>;

    void start(const EngineJob& job) override {
        starts.push_back({job.job, job.attempt});
        started[{job.job, job.attempt}] = job;
    }
    void adopt(const EngineJob& job) override { adopted.push_back({job.job, job.attempt}); }
    void stop(JobId job, std::uint32_t attempt) override { stops.push_back({job, attempt}); }
    std::vector<AttemptName> list() const override {
        ++listings;
        return listed;
    }
    std::uint64_t lists() const override { return listed_times; }
    void stop_orphan(const AttemptName& orphan) override { orphans.push_back(orphan); }
    std::optional<bool> can_resize() const override { return resizes_attempts; }
    void resize(const EngineJob& job) override { resizes.push_back(job); }
    std::vector<EngineEvent> poll() override { return std::exchange(events, {}); }
    void recorded(std::uint64_t count) override { recorded_events = count; }
    bool is_connected() const override { return connected; }
    Result<DrainCommands> drain_commands(const std::string& node) const override {
        if (drains_itself) return DrainCommands{.drain = "drain " + node, .undrain = "undrain " + node};
        return DrainCommands{};
    }
    void forget(JobId job) override { forgotten.push_back(job); }
    std::string output_of(JobId job, std::uint32_t attempt) const override {
        if (output_directory.empty()) return "";
        return output_directory + "/" + std::to_string(job) + "/" + std::to_string(attempt);
    }

    void tell(EngineEvent::Kind kind, Attempt attempt) {
        events.push_back({.kind = kind, .job = attempt.first, .attempt = attempt.second, .message = "gone"});
    }
    void tell_ended(Attempt attempt, int exit_code, bool was_stopping = false) {
        events.push_back({.kind = EngineEvent::Kind::ended,
                          .job = attempt.first,
                          .attempt = attempt.second,
                          .exit_code = exit_code,
                          .was_stopping = was_stopping});
    }
    void tell_resize(EngineEvent::Kind kind, Attempt attempt, std::uint32_t resize) {
        events.push_back(
            {.kind = kind, .job = attempt.first, .attempt = attempt.second, .resize = resize, .message = "full"});
    }
    void tell(EngineEvent event) { events.push_back(std::move(event)); }
    void tell_node(EngineEvent::Kind kind, const std::string& node) { events.push_back({.kind = kind, .node = node}); }

    bool drains_itself = false;
    std::string output_directory = "output";  // empty: nowhere
    std::vector<Attempt> starts;
    std::map<Attempt, EngineJob> started;
    std::vector<Attempt> adopted;
    std::vector<Attempt> stops;
    std::vector<EngineJob> resizes;
    std::vector<AttemptName> listed;
    std::uint64_t listed_times = 0;
    mutable std::uint64_t listings = 0;  // calls of list()
    std::vector<AttemptName> orphans;    // that were told to stop
    std::vector<JobId> forgotten;
    std::vector<EngineEvent> events;
    std::uint64_t recorded_events = 0;
    bool connected = true;
    std::optional<bool> resizes_attempts = false;
};

}  // namespace larder::scheduler
