#pragma once

// Serves submitted jobs over the allocator's HTTP API: the routes under /v1/queue, /v1/history and /v1/gpu-nodes, their
// metrics, and the ticks that drive the scheduler. Owns the scheduler, its engine and its history store. An engine may
// have routes of its own.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "allocator/service/extension.h"
#include "scheduler/live/history_store.h"
#include "scheduler/live/live_scheduler.h"

namespace larder::scheduler {

class QueueApi final : public allocator::Extension {
public:
    struct Parts {
        LiveOptions options;
        std::unique_ptr<HistoryStore> store;
        std::unique_ptr<Engine> engine;
        std::unique_ptr<allocator::Extension> engine_api;  // the engine's own routes; null: none. Refers to the engine
    };
    QueueApi(Parts parts, const allocator::ExtensionContext& place);

    std::span<const Route> routes() const override;
    void answer(std::size_t route, const HttpRequest& request, const std::string& name,
                const HttpRespond& respond) override;
    void tick() override;
    void put_status(boost::json::object& status) const override;
    std::string metrics_text() override;
    bool all_saved() const override { return scheduler_.all_saved(); }
    void when_saved(const allocator::Done& done) override { scheduler_.when_saved(done); }

private:
    Submitter submitter_of(const HttpRequest& request) const;
    Result<std::vector<Submission>> read_submissions(const HttpRequest& request) const;
    void submit(const HttpRequest& request, const HttpRespond& respond);
    HttpResponse list() const;
    HttpResponse nodes() const;
    HttpResponse tenants() const;
    void drain(const std::string& node, const HttpRequest& request, const HttpRespond& respond);
    void undrain(const std::string& node, const HttpRequest& request, const HttpRespond& respond);
    HttpResponse show(const JobRecord& job) const;
    void cancel(const JobRecord& job, const HttpRequest& request, const HttpRespond& respond);
    HttpResponse explain(const JobRecord& job) const;
    static bool may_manage(const JobRecord& job, const HttpRequest& request);
    HttpResponse output(const JobRecord& job, const HttpRequest& request) const;
    HttpResponse history(const HttpRequest& request) const;
    Moment now() const;

    const Clock& clock_;
    std::int64_t unix_offset_ns_;  // fixed at start, so that setting the clock does not move past events
    allocator::EventLog& events_;
    std::unique_ptr<HistoryStore> store_;
    std::unique_ptr<Engine> engine_;
    std::unique_ptr<allocator::Extension> engine_api_;  // may be null
    std::vector<Route> routes_;                         // of the queue, then of the engine
    LiveScheduler scheduler_;
};

// Returns the queue's metrics in Prometheus' text format.
std::string queue_metrics(const LiveScheduler& scheduler);

}  // namespace larder::scheduler
