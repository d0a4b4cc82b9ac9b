#pragma once

// An extension of the allocator's API, mounted by a program: more routes under the same limits, roles and index, more
// metrics, and a tick. The service knows nothing of their meaning. All calls come on the service's thread.

#include <boost/json/object.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/cluster.h"
#include "allocator/service/access.h"
#include "allocator/service/events.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/server/http.h"
#include "base/server/row_store.h"

namespace larder::allocator {

// Wraps a call so that any thread may make it, once. The call runs on the service's thread, which does not end before
// the call.
using Done = std::function<void(Result<void> result)>;
using OnServiceThread = std::function<Done(Done call)>;

class Extension {
public:
    struct Route {
        std::string_view method;
        std::string_view path;   // "/v1/queue/{name}"
        std::string_view query;  // the accepted query keys, separated by a space
        Roles roles = 0;
    };

    virtual ~Extension() = default;
    virtual std::span<const Route> routes() const = 0;
    // `route` is an index in routes(), `name` the segment at "{name}". Calls `respond` now or later, on the service's
    // thread.
    virtual void answer(std::size_t route, const HttpRequest& request, const std::string& name,
                        const HttpRespond& respond) = 0;
    // Called a few times a second.
    virtual void tick() = 0;
    // Adds the extension's members to the answer of GET /v1/status.
    virtual void put_status(boost::json::object& status) const = 0;
    // True if the extension's record has all its changes. when_saved() calls `done` on the service's thread once the
    // record has all those made so far, or with an error if the last could not be written.
    virtual bool all_saved() const { return true; }
    virtual void when_saved(const Done& done) { done({}); }
    // Returns metrics in Prometheus' text format.
    virtual std::string metrics_text() = 0;
};

// The arguments for making an extension. All of them outlive it.
struct ExtensionContext {
    Cluster& cluster;  // restored from its record
    EventLog& events;
    const Clock& clock;
    OnServiceThread on_thread;
    OpenRows shared_rows;  // where one of several allocators keeps its rows; empty: each keeps its own
};

// Empty if no extension is wanted.
using MakeExtension = std::function<Result<std::unique_ptr<Extension>>(const ExtensionContext& place)>;

}  // namespace larder::allocator
