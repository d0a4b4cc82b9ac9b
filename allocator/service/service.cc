#include "allocator/service/service.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include <csignal>

#include "allocator/service/api.h"
#include "allocator/service/ticks.h"
#include "base/clock.h"
#include "base/server/http.h"
#include "base/server/logging.h"
#include "base/units.h"

namespace larder::allocator {

Result<void> serve(const ServiceOptions& options, const std::function<void()>& started) {
    boost::asio::io_context context{1};
    const SteadyClock clock;
    Cluster cluster(options.cluster);
    Api api(cluster, clock);
    Ticks ticks(context, api);
    // A report of a thousand datasets and jobs.
    HttpServer http(context,
                    [&](const HttpRequest& request, const HttpRespond& respond) { api.handle(request, respond); },
                    {.body_bytes_max = 4u << 20});
    // Before anybody can know that it serves.
    boost::asio::signal_set signals(context, SIGTERM, SIGINT);
    signals.async_wait([&](const boost::system::error_code& error, int signal) {
        if (error) return;
        log_info("asked to end", {{"signal", signal == SIGTERM ? "SIGTERM" : "SIGINT"}});
        ticks.stop();
        http.stop();
    });
    if (auto listening = http.listen_unix(options.socket, options.socket_mode); !listening) return listening;
    log_info("allocating", {{"socket", options.socket},
                            {"remote", format_bytes_per_second(options.cluster.remote_bytes_per_second)},
                            {"lease_s", options.cluster.lease_ns / 1'000'000'000}});
    if (started) started();
    context.run();
    return {};
}

}  // namespace larder::allocator
