// How long does it take from opening a loader to its first batch, and how much processor time does a session of
// one batch take in job and daemon together? A training script pays both, and so does each of its workers.
// Measured at the default memory budget and at a small one: unused memory should cost nothing.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bench/bench_options.h"
#include "bench/daemon_process.h"
#include "bench/median.h"
#include "bench/work_directory.h"
#include "loader/larder.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

// Returns the CPU time of all threads of the process so far, in user and system mode.
Result<std::int64_t> cpu_ns(pid_t process) {
    clockid_t cpu_clock{};
    if (const int error = ::clock_getcpuclockid(process, &cpu_clock); error != 0) {
        return fail_errno(error, "the CPU clock of process " + std::to_string(process));
    }
    timespec time{};
    if (::clock_gettime(cpu_clock, &time) != 0) return fail_errno(errno, "read a CPU clock");
    return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

struct SessionsBench {
    DaemonProcess& daemon;
    int sessions;

    // Returns the CPU time of this process and the daemon, once the daemon has freed the resources of ended sessions.
    Result<std::int64_t> both_cpu_ns() const {
        for (;;) {
            const auto status = daemon.status();
            if (!status) return std::unexpected(status.error());
            if (status->at("sessions").to_number<std::uint64_t>() == 0) break;
            const timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
            ::nanosleep(&pause, nullptr);
        }
        const auto own_ns = cpu_ns(0);
        const auto daemon_ns = cpu_ns(daemon.pid());
        if (!own_ns || !daemon_ns) return own_ns ? daemon_ns : own_ns;
        return *own_ns + *daemon_ns;
    }

    Result<boost::json::object> measure_with_budget(std::uint64_t budget_bytes) const {
        const SteadyClock clock;
        std::vector<double> milliseconds;
        std::uint64_t samples = 0;
        const auto cpu_before_ns = both_cpu_ns();
        if (!cpu_before_ns) return std::unexpected(cpu_before_ns.error());
        for (int i = 0; i < sessions; ++i) {
            const std::int64_t began_ns = clock.now_ns();
            auto loader = Loader::open({{.dataset = "sessions",
                                         .job = "sessions",
                                         .socket = daemon.socket(),
                                         .memory_budget_bytes = budget_bytes},
                                        static_cast<std::uint64_t>(i),
                                        true,
                                        16,
                                        32});
            if (!loader) return std::unexpected(loader.error());
            const auto batch = loader->next();
            if (!batch) return std::unexpected(batch.error());
            milliseconds.push_back(static_cast<double>(clock.now_ns() - began_ns) * 1e-6);
            samples += (*batch)->size();
        }
        const auto cpu_after_ns = both_cpu_ns();
        if (!cpu_after_ns) return std::unexpected(cpu_after_ns.error());
        return boost::json::object{{"budget_bytes", budget_bytes},
                                   {"samples", samples},
                                   {"open_to_first_batch_ms", median(milliseconds)},
                                   {"slowest_ms", *std::max_element(milliseconds.begin(), milliseconds.end())},
                                   {"cpu_ms", static_cast<double>(*cpu_after_ns - *cpu_before_ns) * 1e-6 / sessions}};
    }
};

}  // namespace

Result<boost::json::value> sessions(const BenchOptions& options) {
    constexpr std::uint64_t kSessionBlockBytes = 64 << 10;
    constexpr std::uint64_t kDefaultBudgetBytes = 256 << 20;
    constexpr std::uint64_t kSmallBudgetBytes = 48 << 20;
    auto work = WorkDirectory::make(options.directory);
    if (!work) return std::unexpected(work.error());
    const auto files = write_files(*work / "data", 512, kSessionBlockBytes);
    if (!files) return std::unexpected(files.error());
    auto daemon = DaemonProcess::start({.state_directory = *work / "state"});
    if (!daemon) return std::unexpected(daemon.error());
    if (auto added = daemon->add_dataset(
            {.name = "sessions", .directory = files->directory, .quota_disk_bytes = 2 * files->total_bytes()});
        !added) {
        return std::unexpected(added.error());
    }
    if (auto warmed = daemon->warm("sessions"); !warmed) return std::unexpected(warmed.error());
    const SessionsBench bench{*daemon, options.quick ? 5 : 50};
    boost::json::array rows;
    for (const std::uint64_t budget_bytes : {kDefaultBudgetBytes, kSmallBudgetBytes}) {
        const auto row = bench.measure_with_budget(budget_bytes);
        if (!row) return std::unexpected(row.error());
        rows.push_back(*row);
    }
    const boost::json::object& at_default = rows.at(0).as_object();
    boost::json::object result{{"sessions", bench.sessions},
                               {"samples", at_default.at("samples")},
                               {"open_to_first_batch_ms", at_default.at("open_to_first_batch_ms")},
                               {"cpu_ms", at_default.at("cpu_ms")},
                               {"budgets", rows}};
    if (!options.json) {
        cli::Table table({">memory budget", ">open to first batch", ">slowest", ">CPU a session"});
        for (const auto& row : rows) {
            const auto text = [&](const char* key) {
                char ms[32];
                std::snprintf(ms, sizeof ms, "%.2f ms", row.at(key).as_double());
                return std::string(ms);
            };
            table.add({format_bytes(row.at("budget_bytes").to_number<std::uint64_t>()), text("open_to_first_batch_ms"),
                       text("slowest_ms"), text("cpu_ms")});
        }
        std::printf("%d sessions of one batch of 32 disk hits each\n%s", bench.sessions, table.text().c_str());
    }
    return result;
}

}  // namespace larder::bench
