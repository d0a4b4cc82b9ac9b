#pragma once

// The allocator's HTTP/JSON API. Every route is a row of one table (AllocatorApi::routes), which GET /v1 lists and
// docs/openapi/allocator.yaml describes. Runs on one thread, which also makes the plans. A request that is refused
// changes nothing.
// Some requests may wait (?wait_s=): AllocatorApi keeps them, and answers when there is something new, when their time
// is over, or when end_waits() is called.

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/cluster.h"
#include "allocator/service/allocator_metrics.h"
#include "allocator/service/event_streams.h"
#include "allocator/service/events.h"
#include "allocator/service/extension.h"
#include "allocator/service/job_history.h"
#include "allocator/service/observed.h"
#include "allocator/service/plan_watch.h"
#include "allocator/service/view.h"
#include "base/clock.h"
#include "base/server/http.h"

namespace larder::allocator {

class AllocatorApi {
public:
    // A request, and the name in its path: the "a" of /v1/nodes/a/plan.
    struct Asked {
        const HttpRequest& http;
        std::string name{};
        std::optional<std::uint64_t> after{};  // number of the last event that the client has seen
        std::uint64_t wait_s = 0;
        std::uint64_t status_ms = 0;  // interval between statuses in an event stream; 0: none
        unsigned protocol = 1;        // of the request's body and of the answer, see allocator/protocol/codec.h
        bool may_wait = false;        // true: the answer may be nullopt, which means not yet
    };
    struct Route {
        std::string_view method;
        std::string_view path;   // "/v1/nodes/{name}/plan"
        std::string_view query;  // the accepted query keys, separated by a space
        std::optional<HttpResponse> (AllocatorApi::*answer)(const Asked& asked);
        bool changes_settings = false;  // answered once the change survives a power cut
    };
    // Calls `then` on the API's thread once everything saved so far survives a power cut, or with the error if it does
    // not.
    using WhenDurable = std::function<void(std::function<void(Result<void> saved)> then)>;
    static std::span<const Route> routes();

    // `cluster` and `clock` must outlive the AllocatorApi.
    AllocatorApi(Cluster& cluster, const Clock& clock);

    // Serves the extension's routes too from now on. `extension` must outlive the last call of the AllocatorApi.
    void extend(Extension& extension) { extension_ = &extension; }
    EventLog& events() { return events_; }
    // Sets the function that waits for the disk, and the one that tells if all is durable now. Without them, all
    // counts as durable at once. `withdraw` may be empty; it is called once a setting was set back, because it could
    // not be saved.
    void set_when_durable(WhenDurable when_durable, std::function<bool()> all_durable,
                          std::function<void(const std::string& setting)> withdraw = {}) {
        when_durable_ = std::move(when_durable);
        all_durable_ = std::move(all_durable);
        withdraw_ = std::move(withdraw);
    }
    // Sets the like of both for the promises to a node: the answer to its report waits for nothing else.
    void set_when_promised(std::function<void(const std::string& node, std::function<void(Result<void>)> then)> when,
                           std::function<bool(const std::string& node)> is_promised) {
        when_promised_ = std::move(when);
        is_promised_ = std::move(is_promised);
    }

    // Calls `respond` now, or later from tick(), end_waits() or another request.
    void handle(const HttpRequest& request, const HttpRespond& respond);
    // Returns a function that calls handle(). The AllocatorApi must outlive it.
    HttpHandler handler() {
        return [this](const HttpRequest& request, const HttpRespond& respond) { handle(request, respond); };
    }
    // Notices nodes that have fallen silent, and ends waits that are over. Call it a few times a second.
    void tick();
    // Answers all waiting requests with the present state, and ends streams. Call it before the server ends.
    void end_waits();
    // Ends the event streams, so that their readers connect again and are asked who they are.
    void end_streams() { streams_.end(); }

private:
    struct Waiting {
        HttpRequest request;
        HttpRespond respond;
        const Route* route = nullptr;
        std::string name;
        std::optional<std::uint64_t> after;
        unsigned protocol = 1;
        std::int64_t until_ns = 0;
        std::shared_ptr<bool> gone;  // true: its client has left
    };

    // A change that is in force, but may not be durable yet.
    struct Change {
        std::string setting;         // "remote", "pin/DATASET" or "job/NAME"; empty: not a setting
        std::function<void()> undo;  // may be empty
        std::optional<Error> error;  // set if it was undone because an earlier change of the setting failed
    };

    // Call it before a request or a tick is handled. Excuses the silence of nodes while the thread was kept from both.
    void begin_turn();
    void find_and_answer(const HttpRequest& request, const HttpRespond& respond);
    // Returns false if the extension has no such route; `allowed` then lists the methods it has for that path.
    bool answer_by_extension(const HttpRequest& request, const HttpRespond& respond, std::string& allowed);
    static const Route* node_plan_route();
    void respond_to(const Route& route, HttpResponse answer, const HttpRespond& respond);
    // Answers once the setting is durable, or else what `node` was promised. If it cannot be saved, undoes it and
    // answers with the error.
    void answer_when_durable(HttpResponse answer, const HttpRespond& respond, Change change, const std::string& node);
    // Ends a change that waited to become durable. Returns an error if it is not in force.
    Result<void> end_change(const std::shared_ptr<Change>& change, const Result<void>& saved);
    bool is_promised(const std::string& node) const;
    // Answers the waiting requests that have a new answer or whose time is over; if `all`, all of them.
    void answer_waiting(bool all);

    std::optional<HttpResponse> get_index(const Asked& asked);
    std::optional<HttpResponse> get_status(const Asked& asked);
    std::optional<HttpResponse> get_health(const Asked& asked);
    std::optional<HttpResponse> get_metrics(const Asked& asked);
    std::optional<HttpResponse> get_page(const Asked& asked);
    std::optional<HttpResponse> get_access(const Asked& asked);
    std::optional<HttpResponse> post_report(const Asked& asked);
    std::optional<HttpResponse> get_plan(const Asked& asked);
    std::optional<HttpResponse> get_nodes(const Asked& asked);
    std::optional<HttpResponse> get_node_plan(const Asked& asked);
    std::optional<HttpResponse> delete_node(const Asked& asked);
    std::optional<HttpResponse> get_datasets(const Asked& asked);
    std::optional<HttpResponse> put_pin(const Asked& asked);
    std::optional<HttpResponse> delete_pin(const Asked& asked);
    std::optional<HttpResponse> get_jobs(const Asked& asked);
    std::optional<HttpResponse> get_rates(const Asked& asked);
    std::optional<HttpResponse> post_job(const Asked& asked);
    std::optional<HttpResponse> delete_job(const Asked& asked);
    std::optional<HttpResponse> put_reservation(const Asked& asked);
    std::optional<HttpResponse> post_placement(const Asked& asked);
    std::optional<HttpResponse> put_remote(const Asked& asked);
    std::optional<HttpResponse> delete_remote(const Asked& asked);
    HttpResponse answer_remote(double before, const Result<void>& changed);
    std::optional<HttpResponse> post_whatif(const Asked& asked);
    // Answers a what-if.
    HttpResponse compare(const Asked& asked);
    std::optional<HttpResponse> get_events(const Asked& asked);
    std::optional<HttpResponse> get_event_stream(const Asked& asked);

    struct Reporter {
        std::string node;
        std::optional<std::uint64_t> peers_etag;
    };
    // Sets `reporter` as far as the report can be read.
    Result<void> take_report(const Asked& asked, Reporter& reporter);
    // Returns the node's part of the plan in force, with a new lease, as Cluster::plan_for does.
    HttpResponse node_plan(const std::string& node, unsigned protocol,
                           std::optional<std::uint64_t> known_peers_etag = std::nullopt);
    // Makes a new plan, unless one was made just now and only reports have come since.
    Result<void> replan(bool at_once);
    // Answers an operator's request. On success an event is added and a new plan follows: at once if `at_once`, else
    // when due.
    HttpResponse answer_change(const Result<void>& result, EventKind kind, const std::string& subject,
                               const std::string& message, bool at_once = true);
    ClusterView view();
    Change change_of_pin(const std::string& dataset);
    void push_to_streams();

    Cluster& cluster_;
    const Clock& clock_;
    std::int64_t started_ns_;
    std::int64_t started_unix_ms_ = unix_time_ns() / 1'000'000;
    std::int64_t planned_ns_ = 0;
    std::int64_t next_plan_ns_ = 0;
    std::int64_t next_what_if_ns_ = std::numeric_limits<std::int64_t>::min();  // of callers without an operator's role
    std::int64_t turn_begun_ns_;                                               // of the last turn
    bool plan_is_due_ = false;  // something changed that the last plan does not know of
    EventLog events_;
    PlanWatch watch_{events_};
    Observed observed_;
    JobHistory history_;
    ServiceCounts counts_;
    std::vector<Waiting> waiting_;
    std::string unplanned_;  // set by post_report() if the node waits for the next plan
    EventStreams streams_;
    Extension* extension_ = nullptr;
    WhenDurable when_durable_;           // may be empty
    std::function<bool()> all_durable_;  // may be empty
    std::function<void(const std::string& setting)> withdraw_;
    std::function<void(const std::string& node, std::function<void(Result<void>)> then)> when_promised_;
    std::function<bool(const std::string& node)> is_promised_;
    Change change_;            // the last one: of a setting, or a lease whose promises are not durable
    std::string promised_to_;  // the node of that lease
    // The changes of each setting that wait to become durable, in order.
    std::map<std::string, std::vector<std::shared_ptr<Change>>> changes_;
};

}  // namespace larder::allocator
