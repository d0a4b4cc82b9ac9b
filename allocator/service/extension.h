#pragma once

// What a program mounts on the allocator's API besides its own routes: more routes under the same limits, roles and
// index, more metrics, and a tick. The service knows nothing of what they do. All calls come on the service's thread.

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

namespace larder::allocator {

class Extension {
public:
    struct Route {
        std::string_view method;
        std::string_view path;   // "/v1/queue/{name}"
        std::string_view query;  // the keys it knows, a space between two
        Roles roles = 0;
    };

    virtual ~Extension() = default;
    virtual std::span<const Route> routes() const = 0;
    // `route`: index in routes(); `name`: what stands at "{name}". Calls `respond` now or later, on the service's
    // thread.
    virtual void answer(std::size_t route, const HttpRequest& request, const std::string& name,
                        const HttpRespond& respond) = 0;
    // A few times a second.
    virtual void tick() = 0;
    // Adds the extension's members to the answer of GET /v1/status.
    virtual void put_status(boost::json::object& status) const = 0;
    // In Prometheus' text format.
    virtual std::string metrics_text() = 0;
};

// Makes of a call one that any thread may make, once: it runs on the service's thread, which runs until then.
using Done = std::function<void(Result<void> done)>;
using OnServiceThread = std::function<Done(Done call)>;

// What an extension is made with; all of it outlives it.
struct ExtensionPlace {
    Cluster& cluster;  // as it was taken up from its record
    EventLog& events;
    const Clock& clock;
    OnServiceThread on_thread;
};

// Empty: none is wanted.
using MakeExtension = std::function<Result<std::unique_ptr<Extension>>(const ExtensionPlace& place)>;

}  // namespace larder::allocator
