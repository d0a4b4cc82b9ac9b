#pragma once

// The allocator's HTTP/JSON, on a Unix socket: who may connect may do all of it. Runs on one thread, which also makes
// the plans.
//
//   POST   /v1/reports                       a node's report; answers with its part of the plan and a new lease
//   GET    /v1/plan                          the plan in force, and what it was made from
//   POST   /v1/jobs                          registers a job        DELETE /v1/jobs/NAME
//   PUT    /v1/datasets/NAME/pin  {bytes}    fixes a quota          DELETE /v1/datasets/NAME/pin
//   PUT    /v1/remote  {bytes_per_second}
//   GET    /healthz
//
// A request that is refused changes nothing.

#include "allocator/cluster.h"
#include "base/clock.h"
#include "base/server/http.h"

namespace larder::allocator {

class Api {
public:
    // `cluster` and `clock` must outlive it.
    Api(Cluster& cluster, const Clock& clock) : cluster_(cluster), clock_(clock) {}

    HttpResponse handle(const HttpRequest& request);

private:
    HttpResponse post_report(const HttpRequest& request);
    HttpResponse get_plan();
    HttpResponse jobs(const HttpRequest& request);
    HttpResponse pin(const HttpRequest& request);
    HttpResponse put_remote(const HttpRequest& request);

    Cluster& cluster_;
    const Clock& clock_;
};

}  // namespace larder::allocator
