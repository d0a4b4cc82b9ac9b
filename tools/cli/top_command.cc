#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>

#include "base/clock.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/context.h"
#include "tools/cli/live.h"
#include "tools/cli/table.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

// Counts of one dataset or job so far.
struct Counts {
    double hits = 0;
    double misses = 0;
    double memory_bytes = 0;
    double disk_bytes = 0;
    double remote_bytes = 0;
    double stall_s = 0;
};

Counts counts_of(const json::object& object) {
    const json::object& counters = object_at(object, "counters");
    return {number_at(counters, "memory_hits") + number_at(counters, "disk_hits"),
            number_at(counters, "misses"),
            number_at(counters, "bytes_memory"),
            number_at(counters, "bytes_disk"),
            number_at(counters, "bytes_remote"),
            number_at(object, "stall_s")};
}

struct Snapshot {
    std::int64_t taken_ns = 0;
    json::value datasets;
    json::value jobs;
    json::value status;
};

Result<Snapshot> take_snapshot(const Context& context, const Clock& clock) {
    Snapshot snapshot;
    snapshot.taken_ns = clock.now_ns();
    auto datasets = call(context, "GET", "/v1/datasets");
    if (!datasets) return std::unexpected(datasets.error());
    auto jobs = call(context, "GET", "/v1/jobs");
    if (!jobs) return std::unexpected(jobs.error());
    auto status = call(context, "GET", "/v1/status");
    if (!status) return std::unexpected(status.error());
    snapshot.status = std::move(*status);
    snapshot.datasets = std::move(*datasets);
    snapshot.jobs = std::move(*jobs);
    return snapshot;
}

// Rates of rows between two snapshots; a row that is new in the second has none yet.
class Rates {
public:
    Rates(const json::array& before, std::int64_t before_ns, std::int64_t now_ns)
        : seconds_(static_cast<double>(now_ns - before_ns) / 1e9) {
        for (const json::value& value : before) before_[key_of(as_object(value))] = counts_of(as_object(value));
    }

    // Returns the hit ratio, the rates by source and their sum.
    std::vector<std::string> cells(const json::object& row) const {
        const auto previous = before_.find(key_of(row));
        if (previous == before_.end()) return {"-", "-", "-", "-", "-"};
        const Counts now = counts_of(row);
        const Counts& earlier = previous->second;
        const double hits = now.hits - earlier.hits;
        const auto rate = [&](double bytes) { return format_rate_short(bytes / seconds_); };
        const double memory = now.memory_bytes - earlier.memory_bytes;
        const double disk = now.disk_bytes - earlier.disk_bytes;
        const double remote = now.remote_bytes - earlier.remote_bytes;
        return {format_part(hits, hits + now.misses - earlier.misses), rate(memory), rate(disk), rate(remote),
                rate(memory + disk + remote)};
    }

    // Returns the part of its sessions' time that a job waited.
    std::string stall(const json::object& job) const {
        const auto previous = before_.find(key_of(job));
        const double sessions = number_at(job, "sessions");
        if (previous == before_.end()) return "-";
        return format_part(counts_of(job).stall_s - previous->second.stall_s, seconds_ * sessions);
    }

private:
    static std::string key_of(const json::object& row) {
        return text_at(row, "job") + "\n" + text_at(row, "dataset") + "\n" + text_at(row, "name");
    }

    double seconds_;
    std::map<std::string, Counts> before_;
};

const json::array& rows(const json::value& answer, const char* key) {
    return array_at(as_object(answer), key);
}

const std::vector<std::string> kNodeColumns{"DATASET", "SIZE", "CACHED",   "HITS",  "MEMORY", "DISK", "REMOTE",
                                            "TOTAL",   "JOB",  "SESSIONS", "EPOCH", "LIMIT",  "STALL"};

std::string screen_text(const Snapshot& before, const Snapshot& now, const RowChoice& choice) {
    Table datasets({"DATASET", ">SIZE", ">CACHED", ">HITS", ">MEMORY", ">DISK", ">REMOTE", ">TOTAL"});
    const Rates dataset_rates(rows(before.datasets, "datasets"), before.taken_ns, now.taken_ns);
    for (const json::value& value : rows(now.datasets, "datasets")) {
        const json::object& row = as_object(value);
        std::vector<std::string> cells{text_at(row, "name"), format_bytes_short(count_at(row, "total_bytes")),
                                       format_part(number_at(row, "cached_ratio"), 1)};
        for (std::string& cell : dataset_rates.cells(row)) cells.push_back(std::move(cell));
        datasets.add(std::move(cells));
    }
    Table jobs({"JOB", "DATASET", ">SESSIONS", ">EPOCH", ">HITS", ">MEMORY", ">DISK", ">REMOTE", ">TOTAL", ">LIMIT",
                ">STALL"});
    const Rates job_rates(rows(before.jobs, "jobs"), before.taken_ns, now.taken_ns);
    for (const json::value& value : rows(now.jobs, "jobs")) {
        const json::object& row = as_object(value);
        std::vector<std::string> cells{text_at(row, "job"), or_dash(text_at(row, "dataset")), text_at(row, "sessions"),
                                       text_at(row, "epoch")};
        for (std::string& cell : job_rates.cells(row)) cells.push_back(std::move(cell));
        const double limit = number_at(row, "remote_rate");
        cells.push_back(limit > 0 ? format_rate_short(limit) : "none");
        cells.push_back(job_rates.stall(row));
        jobs.add(std::move(cells));
    }
    datasets.choose(choice);
    const bool has_jobs = !jobs.empty();
    jobs.choose(choice);
    std::string outages;
    for (const json::value& outage : rows(now.status, "outages")) {
        outages += "remote away: " + outage_text(as_object(outage)) + "\n";
    }
    const std::size_t columns = Screen::columns();
    const std::string jobs_text =
        !has_jobs ? std::string("no jobs connected\n")
                  : jobs.text_within(columns, {"SESSIONS", "EPOCH", "TOTAL", "LIMIT", "MEMORY", "DISK"});
    return outages + datasets.text_within(columns, {"TOTAL", "SIZE", "CACHED"}) + "\n" + jobs_text;
}

int node_top(const Context& context, const LiveViewOptions& options) {
    const SteadyClock clock;
    Snapshot before;
    const auto begin = [&]() -> Result<void> {
        auto first = take_snapshot(context, clock);
        if (!first) return std::unexpected(first.error());
        before = std::move(*first);
        return {};
    };
    return show_live(context, options, kNodeColumns, begin, [&]() -> Result<Look> {
        auto now = take_snapshot(context, clock);
        if (!now) return std::unexpected(now.error());
        Look look{.json = json::object{{"datasets", rows(now->datasets, "datasets")},
                                       {"jobs", rows(now->jobs, "jobs")},
                                       {"outages", rows(now->status, "outages")}},
                  .text = [before, now = *now](const RowChoice& choice) { return screen_text(before, now, choice); }};
        before = std::move(*now);
        return look;
    });
}

}  // namespace

void add_top_command(CLI::App& app, Context& context) {
    struct Options {
        LiveViewOptions live;
        bool node = false;
    };
    auto options = std::make_shared<Options>();
    CLI::App* command = app.add_subcommand(
        "top", "Watch this node's rates, hits and waits; with --allocator, the cluster and its plan");
    command->add_option("--interval", options->live.interval_s, "Seconds between two updates. Default: 1")
        ->check(CLI::Range(0.1, 3600.0));
    command->add_option("--count", options->live.count, "Updates before the command ends. Default: until q or Ctrl-C")
        ->check(CLI::PositiveNumber);
    RowChoice& rows = options->live.rows;
    command
        ->add_option("--sort", rows.column,
                     "Column to sort by, such as REMOTE; numbers begin with the largest. Keys on a terminal: < and >")
        ->transform([](std::string column) {
            std::ranges::transform(column, column.begin(), [](unsigned char letter) { return std::toupper(letter); });
            return column == "F*" ? "f*" : column;
        });
    command->add_flag("--reverse", rows.reversed, "Sort the other way round. Key: r");
    command->add_option("--filter", rows.filter, "Show only rows that contain this text. Key: /");
    command->add_flag("--node", options->node, "Watch this node even if an allocator is named");
    command->callback([&context, options] {
        context.command = [&context, options] {
            return options->node || context.allocator.endpoint.empty() ? node_top(context, options->live)
                                                                       : cluster_top(context, options->live);
        };
    });
}

}  // namespace larder::cli
