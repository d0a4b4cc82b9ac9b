// How much of a core do the reports of a large cluster take? Runs the allocator's service, with its state on disk, and
// sends it 4,000 nodes' reports a second over its Unix socket. Each has 8 datasets and 3 jobs and is answered with the
// node's part of the plan and a lease, which is on record by then. Counts the CPU time of the service's process less
// that of the sender: HTTP, JSON, reports, plans, leases and records.

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "allocator/protocol/codec.h"
#include "allocator/service/service.h"
#include "allocator/service/state_store.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/server/http_client.h"
#include "base/server/json_text.h"
#include "base/server/logging.h"
#include "bench/bench_options.h"
#include "bench/cost.h"
#include "bench/work_directory.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

namespace json = boost::json;
using namespace allocator;

struct ReportsSize {
    std::uint32_t nodes = 4000;
    std::uint32_t datasets = 1000;
    std::uint32_t datasets_per_node = 8;
    std::uint32_t jobs_per_node = 3;
    std::uint32_t group = 40;  // nodes that read each other's caches
    int seconds = 10;
};

// Returns the CPU time of this thread so far.
double thread_cpu_ms() {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    const auto ms = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
    };
    return ms(usage.ru_utime) + ms(usage.ru_stime);
}

// A node that follows its plan: its quotas are filled, and its jobs read.
class ReportingNode {
public:
    ReportingNode(const ReportsSize& size, std::uint32_t number) {
        const std::string name = std::to_string(number);
        report_ = {.node = "node-" + name,
                   .instance = 1,
                   .state_directory = number + 1,
                   .gpus = 8,
                   .memory_bytes = 25'000'000'000,
                   .disk_bytes = 100'000'000'000,
                   .disk_read_bytes_per_second = 6e9,
                   .nic_bytes_per_second = 12.5e9,
                   .peer_group = "group-" + std::to_string(number / size.group),
                   .peer_endpoint = "http://10." + std::to_string(number / 250) + ".0." +
                                    std::to_string(number % 250 + 1) + ":7700"};
        for (std::uint32_t k = 0; k < size.datasets_per_node; ++k) {
            const std::uint32_t dataset = (number * size.datasets_per_node + k) % size.datasets;
            report_.datasets.push_back({.name = "dataset-" + std::to_string(dataset),
                                        .size_bytes = 10'000'000'000ULL * (1 + dataset * 7 % 40)});
        }
        for (std::uint32_t k = 0; k < size.jobs_per_node; ++k) {
            report_.jobs.push_back({.name = "job-" + name + "-" + std::to_string(k),
                                    .dataset = report_.datasets[k].name,
                                    .ranks = 2,
                                    .remote_bytes = 0,
                                    .unread_bytes = 5'000'000'000,
                                    .unread_cached_bytes = 1'000'000'000,
                                    .epoch = 0,
                                    .user = 1000 + k});
        }
    }

    const NodeReport& report() const { return report_; }
    std::string body() {
        for (std::size_t k = 0; k < report_.jobs.size(); ++k) {
            JobReport& job = report_.jobs[k];
            const std::uint64_t more = 100'000'000 + 40'000'000 * k + report_.instance;
            job.bytes += more;
            job.busy_s += 1.2;
            *job.remote_bytes += more / 3;
            job.demand_bytes_per_second = static_cast<double>(more) / 3;
            job.unread_bytes -= std::min(job.unread_bytes - job.unread_cached_bytes, more);
        }
        return json_text(to_json(report_));
    }

    Result<void> take(const HttpResponse& answer, std::int64_t now_ns) {
        if (answer.status != 200) return fail(ErrorCode::internal, report_.node + ": " + answer.body);
        const auto object = parse_json_object(answer.body, "the answer");
        if (!object) return std::unexpected(object.error());
        const auto plan = read_node_plan(*object, "", now_ns);
        if (!plan) return std::unexpected(plan.error());
        report_.lease_applied = plan->lease.number;
        report_.peers_etag = plan->peers_etag;
        for (DatasetReport& dataset : report_.datasets) {
            const auto quota = std::ranges::find(plan->quotas, dataset.name, &DatasetQuota::name);
            if (quota == plan->quotas.end()) continue;
            dataset.quota_memory_bytes = dataset.cached_memory_bytes = quota->memory_bytes;
            dataset.quota_disk_bytes = dataset.cached_disk_bytes = quota->disk_bytes;
        }
        return {};
    }

private:
    NodeReport report_;
};

// Runs the service on a thread of its own.
class ServiceThread {
public:
    // Starts it as after a restart: all nodes are on record, so that not each of them makes a plan when it comes.
    static Result<std::unique_ptr<ServiceThread>> start(const WorkDirectory& work,
                                                        std::span<const ReportingNode> nodes) {
        auto thread = std::unique_ptr<ServiceThread>(new ServiceThread);
        AllocatorConfig config{.state_directory = work / "state", .socket = work / "allocator.sock"};
        config.cluster.remote_bytes_per_second = 1e11;
        config.local_role = Role::operator_;
        config.only_this_process = true;
        config.limits.requests_per_second_per_peer = 0;
        config.limits.request_burst_per_peer = 0;
        if (auto written = write_state(config, nodes, thread->clock_.now_ns()); !written) {
            return std::unexpected(written.error());
        }
        auto service = AllocatorService::start(thread->context_, config, thread->clock_);
        if (!service) return std::unexpected(service.error());
        thread->service_ = std::move(*service);
        thread->thread_ = std::thread([&context = thread->context_] { context.run(); });
        return thread;
    }
    ~ServiceThread() {
        if (!thread_.joinable()) return;
        boost::asio::post(context_, [this] { service_->stop(); });
        thread_.join();
    }

private:
    ServiceThread() = default;

    static Result<void> write_state(const AllocatorConfig& config, std::span<const ReportingNode> nodes,
                                    std::int64_t now_ns) {
        auto store = StateStore::open({.directory = config.state_directory,
                                       .map_bytes = config.state_bytes_max,
                                       .lease_ns = config.cluster.lease_ns,
                                       .lease_holders_end_with_process = true},
                                      now_ns);
        if (!store) return std::unexpected(store.error());
        Cluster cluster(config.cluster);
        for (const ReportingNode& node : nodes) {
            if (auto taken = cluster.report(node.report(), now_ns); !taken) return taken;
        }
        cluster.set_save([&](const ClusterRecord& change) { return (*store)->save(change); });
        const auto planned = cluster.replan(now_ns);
        return planned ? Result<void>() : std::unexpected(planned.error());
    }

    boost::asio::io_context context_{1};
    SteadyClock clock_;
    std::unique_ptr<AllocatorService> service_;
    std::thread thread_;
};

Result<json::object> measure(const ReportsSize& size, const std::string& directory) {
    const auto work = WorkDirectory::make(directory);
    if (!work) return std::unexpected(work.error());
    std::vector<ReportingNode> nodes;
    nodes.reserve(size.nodes);
    for (std::uint32_t n = 0; n < size.nodes; ++n) nodes.emplace_back(size, n);
    auto service = ServiceThread::start(*work, nodes);
    if (!service) return std::unexpected(service.error());
    HttpClient client(*work / "allocator.sock");
    const SteadyClock clock;
    const std::string target = "/v1/reports?" + std::string(kProtocolQuery) + "=" + std::to_string(kProtocolNewest);
    const auto report = [&](ReportingNode& node) -> Result<void> {
        const auto answer = client.request("POST", target, node.body());
        return answer ? node.take(*answer, clock.now_ns()) : std::unexpected(answer.error());
    };
    // All nodes apply their leases after the second round.
    for (int round = 0; round < 2; ++round) {
        for (ReportingNode& node : nodes) {
            if (auto done = report(node); !done) return std::unexpected(done.error());
        }
    }
    const double cpu_before_ms = cpu_ms();
    const double own_before_ms = thread_cpu_ms();
    const std::int64_t began_ns = clock.now_ns();
    for (int second = 0; second < size.seconds; ++second) {
        for (std::uint32_t n = 0; n < size.nodes; ++n) {
            const std::int64_t due_ns = began_ns + second * 1'000'000'000LL + n * 1'000'000'000LL / size.nodes;
            // Short sleeps would come late, so some reports come together.
            while (due_ns - clock.now_ns() > 5'000'000) std::this_thread::sleep_for(std::chrono::milliseconds(5));
            if (auto done = report(nodes[n]); !done) return std::unexpected(done.error());
        }
    }
    const double seconds = seconds_since(clock, began_ns);
    const double cpu_s = (cpu_ms() - cpu_before_ms - thread_cpu_ms() + own_before_ms) / 1e3;
    const double reports = static_cast<double>(size.nodes) * size.seconds;
    return json::object{{"nodes", size.nodes},
                        {"group", size.group},
                        {"reports_per_second", reports / seconds},
                        {"load", load_average()},
                        {"cpu_s_per_4000_reports", cpu_s / reports * 4000},
                        {"cpu_s_per_second", cpu_s / seconds}};
}

}  // namespace

Result<json::value> reports(const BenchOptions& options) {
    keep_freed_memory();  // as larder-allocator does
    set_log_level(LogLevel::warn);
    std::vector<ReportsSize> sizes{{}, {.group = 400, .seconds = 3}};
    if (options.quick) sizes = {{.nodes = 40, .datasets = 20, .group = 10, .seconds = 1}};
    json::array rows;
    cli::Table table({">NODES", ">PEER GROUP", ">REPORTS/S", ">CPU FOR 4,000", ">CORES"});
    for (const ReportsSize& size : sizes) {
        auto row = measure(size, options.directory);
        if (!row) return std::unexpected(row.error());
        const auto text = [&](const char* key, const char* format) {
            char formatted[32];
            std::snprintf(formatted, sizeof formatted, format, row->at(key).to_number<double>());
            return std::string(formatted);
        };
        table.add({text("nodes", "%.0f"), text("group", "%.0f"), text("reports_per_second", "%.0f"),
                   text("cpu_s_per_4000_reports", "%.2f s"), text("cpu_s_per_second", "%.2f")});
        rows.push_back(std::move(*row));
    }
    if (!options.json) std::printf("load %.1f\n%s", load_average(), table.text().c_str());
    return rows;
}

}  // namespace larder::bench
