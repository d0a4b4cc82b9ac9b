#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "cache/control/daemon_config.h"
#include "cache/control/remote_json.h"
#include "cache/remote/remote_url.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/allocator.h"
#include "tools/cli/context.h"
#include "tools/cli/remote_flags.h"
#include "tools/cli/run_program.h"
#include "tools/cli/table.h"
#include "tools/cli/unit_options.h"
#include "tools/doctor/disk.h"
#include "tools/doctor/machine.h"
#include "tools/doctor/remote.h"

namespace larder::cli {
namespace {

namespace json = boost::json;
using doctor::Finding;
using doctor::Verdict;

constexpr std::chrono::seconds kPythonTimeout(20);
// Events and histories of several machines are compared by their times.
constexpr double kClockOffsetMax_s = 1;
constexpr double kToldWithin_s = 1e-3;  // the allocator tells whole milliseconds

struct DoctorOptions {
    std::vector<std::string> remotes;
    std::string state;
    std::string ca_file;
    RemoteChoice remote;
    double seconds = 1;
};

// Prints findings as they are made, or keeps them for one JSON answer.
class Findings {
public:
    explicit Findings(bool as_json) : as_json_(as_json) {}

    void add(const Finding& finding) {
        if (finding.verdict == Verdict::to_do) ++to_do_;
        if (as_json_) return array_.emplace_back(finding.json()), void();
        const std::string text = (finding.subject.empty() ? "" : finding.subject + ": ") + finding.found +
                                 (finding.advice.empty() ? "" : ". To do: " + finding.advice);
        std::printf("%-11s  %-10s  %s\n", std::string(name(finding.verdict)).c_str(), finding.check.c_str(),
                    printable(text).c_str());
        std::fflush(stdout);
    }
    int end(double seconds) {
        if (as_json_) {
            print_json(json::object{{"findings", std::move(array_)}, {"to_do", to_do_}, {"seconds", seconds}});
        } else if (to_do_ == 0) {
            std::printf("nothing to do; it took %s\n", format_seconds(seconds).c_str());
        } else {
            std::printf("to do: %s; it took %s\n", format_counted(to_do_, "line").c_str(),
                        format_seconds(seconds).c_str());
        }
        return to_do_ == 0 ? kDone : kFailed;
    }

private:
    const bool as_json_;
    json::array array_;
    std::uint64_t to_do_ = 0;
};

// `status`: of the daemon; empty if none answers.
Finding check_daemon(const Context& context, const Result<json::value>& status) {
    Finding finding{.check = "daemon", .subject = {}, .found = {}, .advice = {}, .values = {{"cli", LARDER_VERSION}}};
    if (!status) {
        if (status.error().code != ErrorCode::unavailable) {
            return to_do(finding, status.error().message, "run larder doctor as the daemon's user or root");
        }
        finding.verdict = Verdict::not_checked;
        finding.found = "version " LARDER_VERSION " of larder; no daemon answers at " + context.admin_socket +
                        " (larder up starts one)";
        return finding;
    }
    const std::string version = text_at(as_object(*status), "version");
    finding.values["daemon"] = version;
    if (version != LARDER_VERSION) {
        return to_do(finding, "the daemon has version " + version + ", larder " LARDER_VERSION,
                     "install one version of both, and restart the daemon");
    }
    finding.found = "daemon and larder have version " LARDER_VERSION;
    const json::array& problems = array_at(as_object(*status), "problems");
    if (problems.empty()) return finding;
    std::string listed;
    for (const json::value& problem : problems) {
        listed += (listed.empty() ? "" : "; ") + (problem.is_string() ? std::string(problem.get_string()) : "");
    }
    return to_do(finding, "the daemon has problems: " + listed, "see larder status");
}

Finding check_loader() {
    Finding finding{.check = "loader", .subject = {}, .found = {}, .advice = {}};
    finding.verdict = Verdict::not_checked;
    const auto asked = run_program_for_all(
        {"python3", "-c", "import importlib.metadata as m; print(m.version('larder'))"}, {}, kPythonTimeout);
    if (!asked) {
        finding.found = asked.error().message;
        return finding;
    }
    if (asked->status != 0) {
        finding.found = "python3 of this shell has no package larder, which only training environments need";
        return finding;
    }
    const std::string version = asked->output.substr(0, asked->output.find('\n'));
    finding.values["loader"] = version;
    if (version != LARDER_VERSION) {
        return to_do(finding, "the Python package has version " + version + ", larder " LARDER_VERSION,
                     "install the package of version " LARDER_VERSION " where jobs run");
    }
    finding.verdict = Verdict::good;
    finding.found = "the Python package has version " + version;
    return finding;
}

// `has_allocator`: one was named, or the daemon has one.
Finding check_clock(const Context& context, bool has_allocator) {
    Finding finding{.check = "clock", .subject = {}, .found = {}, .advice = {}};
    const SteadyClock clock;
    const auto find_offset = [&]() -> Result<std::pair<double, double>> {
        const std::int64_t asked_unix_ns = unix_time_ns();
        const std::int64_t began_ns = clock.now_ns();
        const auto status = call_allocator(context, "GET", "/v1/status");
        if (!status) return std::unexpected(status.error());
        const double took_s = seconds_since(clock, began_ns);
        if (!as_object(*status).contains("unix_time_ms")) {
            return fail(ErrorCode::unsupported, "the allocator does not tell its time: it is older than this program");
        }
        const double here_s = static_cast<double>(asked_unix_ns) / 1e9 + took_s / 2;
        return std::pair(number_at(as_object(*status), "unix_time_ms") / 1e3 - here_s, took_s / 2 + kToldWithin_s);
    };
    const auto offset = find_offset();
    if (!offset) {
        if (has_allocator) {
            return to_do(finding, offset.error().message, "start the allocator, or check the way to it");
        }
        finding.verdict = Verdict::not_checked;
        finding.found = "there is no allocator to compare with";
        return finding;
    }
    const auto [offset_s, uncertain_s] = *offset;
    finding.values = {{"allocator_ahead_s", offset_s}, {"uncertainty_s", uncertain_s}};
    finding.found = "the allocator's clock is " + format_seconds(std::abs(offset_s)) +
                    (offset_s < 0 ? " behind" : " ahead") + " (within " + format_seconds(uncertain_s) + ")";
    if (std::abs(offset_s) - uncertain_s <= kClockOffsetMax_s) return finding;
    return to_do(finding, finding.found, "run NTP (chrony, systemd-timesyncd) on both machines");
}

// Takes the options for the remotes from the command line, or from the daemon if it knows the dataset.
Result<doctor::RemoteTarget> find_remote(const Context& context, const DoctorOptions& options,
                                         const std::string& named) {
    if (named.contains('/')) {
        const auto remote = cache::read_remote(options.remote.json(), "options");
        if (!remote) return std::unexpected(remote.error());
        const std::string url = url_of(named);
        if (auto checked = cache::check_remote_options(*remote, url); !checked) return std::unexpected(checked.error());
        return doctor::RemoteTarget{
            .subject = named, .url = url, .options = *remote, .objects = {}, .ca_file = options.ca_file};
    }
    const auto dataset = call(context, "GET", dataset_target(named));
    if (!dataset) return std::unexpected(dataset.error());
    const auto remote = cache::read_remote(object_at(as_object(*dataset), "remote"), "the daemon's answer");
    if (!remote) return std::unexpected(remote.error());
    auto target = doctor::remote_of_dataset(named, jobs_socket(context));
    if (!target) return target;
    target->options = *remote;
    target->ca_file = options.ca_file;
    return target;
}

// The datasets that the daemon serves.
std::vector<std::string> dataset_names(const Context& context) {
    std::vector<std::string> names;
    const auto listed = call(context, "GET", "/v1/datasets");
    if (!listed) return names;
    const json::array& datasets = array_at(as_object(*listed), "datasets");
    names.reserve(datasets.size());
    for (const json::value& dataset : datasets) names.push_back(text_at(as_object(dataset), "name"));
    return names;
}

// Jobs that hit the disk for a part h of their bytes read at most disk / h, and remote / (1 - h).
Finding slower_than_remote(const doctor::DiskMeasure& disk, const std::string& remote, double remote_bytes_per_second) {
    const double useful = disk.read_bytes_per_second / (disk.read_bytes_per_second + remote_bytes_per_second);
    char percent[16];
    std::snprintf(percent, sizeof percent, "%.0f%%", useful * 100);
    Finding finding = disk.finding;
    finding.values["remote_bytes_per_second"] = remote_bytes_per_second;
    finding.values["useful_part"] = useful;
    return to_do(
        finding,
        finding.found + "; the disk will limit jobs: it reads " + format_bytes_per_second(disk.read_bytes_per_second) +
            ", and " + remote + " gives " + format_bytes_per_second(remote_bytes_per_second),
        std::string("cache in memory (larder quota set NAME --memory SIZE), take a faster disk, or keep at most ") +
            percent + " of a dataset on this one: with more, jobs wait for the disk");
}

int doctor_command(const Context& context, const DoctorOptions& options) {
    if (auto checked = options.remote.check(); !checked) return report(context, checked.error());
    const SteadyClock clock;
    const std::int64_t began_ns = clock.now_ns();
    Findings findings(context.json);
    const auto status = call(context, "GET", "/v1/status");
    const bool is_up = status.has_value();
    static const json::object kNothing;
    const json::object& daemon = is_up ? as_object(*status) : kNothing;

    findings.add(doctor::check_kernel());
    findings.add(doctor::check_io_uring(text_at(daemon, "io"), text_at(daemon, "io_reason")));
    findings.add(doctor::check_memlock(static_cast<int>(number_at(daemon, "pid"))));
    findings.add(doctor::check_huge_pages());
    findings.add(check_daemon(context, status));
    findings.add(check_loader());
    findings.add(check_clock(context, !context.allocator.endpoint.empty() || !object_at(daemon, "allocator").empty()));

    const std::vector<std::string> remotes =
        options.remotes.empty() && is_up ? dataset_names(context) : options.remotes;
    double remote_bytes_per_second = 0;
    std::string fastest;
    for (const std::string& named : remotes) {
        const auto target = find_remote(context, options, named);
        if (!target) {
            findings.add(doctor::to_do({.check = "remote", .subject = named, .found = {}, .advice = {}},
                                       target.error().message,
                                       target.error().code == ErrorCode::not_found
                                           ? "name a dataset of larder dataset ls, or a URL or path with a slash"
                                           : "see larder dataset info " + named));
            continue;
        }
        const doctor::RemoteMeasure measure = doctor::check_remote(*target, options.seconds);
        if (measure.bytes_per_second > remote_bytes_per_second) {
            remote_bytes_per_second = measure.bytes_per_second;
            fastest = named;
        }
        findings.add(measure.finding);
    }

    const std::string beside_socket = std::filesystem::path(context.admin_socket).parent_path().string();
    const std::string state = !options.state.empty() ? options.state
                              : is_up                ? beside_socket
                                                     : cache::default_state_directory();
    doctor::DiskMeasure disk = doctor::check_disk(state, options.seconds);
    if (disk.finding.verdict == Verdict::good && disk.read_bytes_per_second < remote_bytes_per_second) {
        disk.finding = slower_than_remote(disk, fastest, remote_bytes_per_second);
    }
    findings.add(disk.finding);
    return findings.end(seconds_since(clock, began_ns));
}

}  // namespace

void add_doctor_command(CLI::App& app, Context& context) {
    auto options = std::make_shared<DoctorOptions>();
    CLI::App* doctor = app.add_subcommand(
        "doctor",
        "Look at this machine, the daemon, its disk and its remotes: each line is good or says what to do. Exit code 1 "
        "if there is something to do");
    doctor->add_option("REMOTE", options->remotes,
                       "Datasets, or URLs and paths (with a slash), to measure. Default: all datasets of the daemon");
    doctor->add_option("--state", options->state,
                       "Directory whose disk is measured. Default: the daemon's, else that of larder up");
    doctor
        ->add_option("--seconds", options->seconds,
                     "Time of each measure: two of the disk, five of each remote. Default: 1")
        ->check(CLI::Range(0.05, 60.0));
    add_remote_options(*doctor, options->remote, "your");
    doctor->add_option("--ca-file", options->ca_file,
                       "PEM file of the CAs to trust for remotes over TLS. Default: the system's CAs");
    doctor->callback(
        [&context, options] { context.command = [&context, options] { return doctor_command(context, *options); }; });
}

}  // namespace larder::cli
