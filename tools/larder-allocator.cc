// larder-allocator: gives the cluster's cache and remote bandwidth to its jobs.

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <map>
#include <string>

#include "allocator/service/service.h"
#include "base/heap.h"
#include "base/server/logging.h"
#include "base/units.h"
#include "tools/cli/context.h"

namespace {

using larder::allocator::ObjectiveKind;

int fail(const larder::Error& error, int code) {
    std::fprintf(stderr, "larder-allocator: %s\n", error.message.c_str());
    return code;
}

int run(int argc, char** argv) {
    CLI::App app("larder-allocator: gives the cluster's cache and remote bandwidth to its jobs");
    app.name("larder-allocator");
    app.footer("SIGTERM and Ctrl-C end it. Exit codes: 0 ended as asked; 1 failed; 2 wrong usage.");
    app.set_version_flag("--version", "larder-allocator " LARDER_VERSION);
    larder::allocator::ServiceOptions options;
    std::string remote;
    std::string floor = "1 MiB/s";
    std::string log_level = "info";
    double lease_s = 10;
    app.add_option("--socket", options.socket, "where nodes and operators connect: a Unix socket")
        ->required()
        ->type_name("PATH");
    app.add_option("--remote-bandwidth", remote, "what all jobs together may take, such as \"10 Gbit\"")
        ->required()
        ->type_name("RATE");
    const std::map<std::string, ObjectiveKind> objectives{{"efficiency", ObjectiveKind::efficiency},
                                                          {"max_min", ObjectiveKind::max_min},
                                                          {"throughput", ObjectiveKind::throughput},
                                                          {"static", ObjectiveKind::equal_shares},
                                                          {"pinned", ObjectiveKind::pinned}};
    app.add_option("--objective", options.cluster.objective.kind, "what a plan is to achieve; default: max_min")
        ->transform(CLI::CheckedTransformer(objectives));
    app.add_option("--hysteresis", options.cluster.objective.hysteresis,
                   "quotas stay when new ones gain less than this part")
        ->check(CLI::Range(0.0, 1.0))
        ->capture_default_str();
    app.add_option("--floor", floor, "what a job may take on a node that has lost its lease")
        ->type_name("RATE")
        ->capture_default_str();
    app.add_option("--lease", lease_s, "seconds that a granted rate holds without being granted anew")
        ->check(CLI::Range(1.0, 3600.0))
        ->capture_default_str();
    app.add_option("--log-level", log_level, "trace, debug, info, warn or error")->capture_default_str();
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? larder::cli::kDone : larder::cli::kUsage;
    }
    const auto remote_rate = larder::parse_bytes_per_second(remote);
    if (!remote_rate) return fail(remote_rate.error().within("--remote-bandwidth"), larder::cli::kUsage);
    const auto floor_rate = larder::parse_bytes_per_second(floor);
    if (!floor_rate) return fail(floor_rate.error().within("--floor"), larder::cli::kUsage);
    const auto level = larder::parse_log_level(log_level);
    if (!level) return fail(level.error().within("--log-level"), larder::cli::kUsage);
    options.cluster.remote_bytes_per_second = *remote_rate;
    options.cluster.floor_bytes_per_second = *floor_rate;
    options.cluster.lease_ns = static_cast<std::int64_t>(lease_s * 1e9);
    if (auto logging = larder::start_logging({*level, ""}); !logging)
        return fail(logging.error(), larder::cli::kFailed);
    larder::keep_freed_memory();
    const auto served = larder::allocator::serve(options);
    larder::stop_logging();
    return served ? larder::cli::kDone : fail(served.error(), larder::cli::kFailed);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "larder-allocator: %s\n", error.what());
        return larder::cli::kFailed;
    }
}
