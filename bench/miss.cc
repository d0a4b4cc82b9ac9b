// Do misses come at the granted rate? Jobs with an empty cache read as fast as they are allowed, one alone and then
// eight with different grants; the bytes from the remote over the time are compared with each grant. A quick run also
// checks counts: its jobs end with their current epoch, and every block and byte of it must have come from the remote
// once. Each job has its own dataset, because jobs on one dataset share fetches. The remote is a directory of files
// made for the bench, or a URL.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bench/bench_options.h"
#include "bench/daemon_process.h"
#include "bench/larder_feeder.h"
#include "bench/miss_counts.h"
#include "bench/work_directory.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

constexpr std::uint64_t kBlockBytes = 64 << 10;
constexpr std::uint64_t kBurstBytes = 16 * kBlockBytes;

struct JobRun {
    std::string name;
    double granted = 0;  // bytes/s
    std::uint64_t epochs = 0;
    FeederTotals totals;
    std::optional<Error> error;
    std::atomic<bool> ended = false;
    std::thread reader;
};

// The bytes that the jobs had taken from the remote at one moment.
struct Snapshot {
    std::int64_t at_ns = 0;
    std::vector<std::uint64_t> bytes;
};

std::uint64_t remote_bytes(const boost::json::object& job) {
    return job.at("counters").at("bytes_remote").to_number<std::uint64_t>();
}

// Grants of the eight jobs, relative to each other.
constexpr double kShares[] = {5, 10, 15, 20, 25, 30, 40, 50};

std::vector<double> split_by_shares(double bytes_per_second) {
    double sum = 0;
    for (const double share : kShares) sum += share;
    std::vector<double> rates;
    for (const double share : kShares) rates.push_back(bytes_per_second * share / sum);
    return rates;
}

// Returns the options of the jobs' datasets, without a name. Each job gets its own dataset of the same data.
Result<DatasetOptions> find_data(const BenchOptions& options, const WorkDirectory& work) {
    if (!options.url.empty()) return DatasetOptions{.url = options.url, .endpoint = options.endpoint, .format = ""};
    const auto files = write_files(work / "data", options.quick ? 512 : 4096, kBlockBytes);
    if (!files) return std::unexpected(files.error());
    return DatasetOptions{.directory = files->directory};
}

void read(JobRun& job, LarderFeeder& feeder, const std::atomic<bool>& stop, bool ends_with_epoch) {
    for (;;) {
        const auto batch = feeder.next();
        if (!batch) {
            job.error = batch.error();
            return;
        }
        const bool ended = !*batch;
        if (ended) ++job.epochs;
        if (stop && (ended || !ends_with_epoch)) break;
    }
    job.totals = feeder.totals();
}

// Collects the counts of a job that ended with an epoch. The daemon counts only blocks that the loader has asked for.
Result<MissCounts> collect_counts(const DaemonProcess& daemon, const JobRun& job) {
    const auto dataset = daemon.dataset(job.name);
    if (!dataset) return std::unexpected(dataset.error());
    const auto now = daemon.job(job.name);
    if (!now) return std::unexpected(now.error());
    const boost::json::object& counters = now->at("counters").as_object();
    const auto number = [](const boost::json::object& object, const char* key) {
        return object.at(key).to_number<std::uint64_t>();
    };
    return MissCounts{
        .blocks = number(*dataset, "blocks"),
        .bytes = number(*dataset, "total_bytes"),
        .epochs = job.epochs,
        .blocks_read = job.totals.blocks,
        .blocks_hit = job.totals.hits,
        .bytes_read = job.totals.bytes,
        .misses = number(counters, "misses"),
        .hits = number(counters, "memory_hits") + number(counters, "disk_hits") + number(counters, "peer_hits"),
        .remote_bytes = number(counters, "bytes_remote"),
        .remote_bytes_read = number(counters, "bytes_remote_read"),
        .remote_errors = number(counters, "remote_errors")};
}

Result<boost::json::object> run_jobs(DaemonProcess& daemon, DatasetOptions dataset, const std::vector<double>& rates,
                                     double seconds, bool ends_with_epoch) {
    std::vector<JobRun> jobs(rates.size());
    std::atomic<bool> stop{false};
    for (std::size_t i = 0; i < rates.size(); ++i) {
        jobs[i].name = "miss-" + std::to_string(rates.size()) + "-" + std::to_string(i);
        jobs[i].granted = rates[i];
        dataset.name = jobs[i].name;
        if (auto added = daemon.add_dataset(dataset); !added) return std::unexpected(added.error());
        if (auto set = daemon.limit_job(jobs[i].name, rates[i], kBurstBytes); !set) {
            return std::unexpected(set.error());
        }
    }
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        jobs[i].reader = std::thread([&job = jobs[i], &daemon, &stop, ends_with_epoch, seed = i] {
            auto feeder = LarderFeeder::open(
                {{.dataset = job.name, .job = job.name, .socket = daemon.socket()}, seed, true, 16, 8});
            if (feeder) {
                read(job, *feeder, stop, ends_with_epoch);
            } else {
                job.error = feeder.error();
            }
            job.ended = true;
        });
    }
    const SteadyClock clock;
    // Returns the first snapshot in which every job has taken more than this, or has ended.
    const auto wait_until_above = [&](const std::vector<std::uint64_t>& bytes) -> Result<Snapshot> {
        for (;;) {
            Snapshot seen{.at_ns = clock.now_ns(), .bytes = {}};
            bool all_above = true;
            for (std::size_t i = 0; i < jobs.size(); ++i) {
                const bool ended = jobs[i].ended;
                const auto now = daemon.job(jobs[i].name);
                if (!now) return std::unexpected(now.error());
                seen.bytes.push_back(remote_bytes(*now));
                all_above &= ended || seen.bytes[i] > bytes[i];
            }
            if (all_above) return seen;
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    };
    // The first burst is no part of the rate.
    const auto before = wait_until_above(std::vector<std::uint64_t>(jobs.size(), kBurstBytes));
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    const auto after = before ? wait_until_above(before->bytes) : before;
    stop = true;
    Result<void> limits_removed;
    for (const JobRun& job : jobs) {
        if (ends_with_epoch && limits_removed) limits_removed = daemon.limit_job(job.name, 0, 0);
    }
    for (JobRun& job : jobs) job.reader.join();
    if (!limits_removed) return std::unexpected(limits_removed.error());
    if (!before) return std::unexpected(before.error());
    if (!after) return std::unexpected(after.error());

    const double elapsed_s = static_cast<double>(after->at_ns - before->at_ns) * 1e-9;
    boost::json::array rows;
    double lowest = 1e9;
    double highest = 0;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        if (jobs[i].error) return std::unexpected(jobs[i].error->within("job " + jobs[i].name));
        const double measured = static_cast<double>(after->bytes[i] - before->bytes[i]) / elapsed_s;
        const double ratio = measured / jobs[i].granted;
        lowest = std::min(lowest, ratio);
        highest = std::max(highest, ratio);
        boost::json::object row{{"granted", jobs[i].granted}, {"measured", measured}, {"ratio", ratio}};
        if (ends_with_epoch) {
            const auto counts = collect_counts(daemon, jobs[i]);
            if (!counts) return std::unexpected(counts.error());
            if (auto right = check(*counts); !right)
                return std::unexpected(right.error().within("job " + jobs[i].name));
            row["epochs"] = counts->epochs;
            row["blocks"] = counts->misses;
            row["bytes"] = counts->remote_bytes;
        }
        rows.push_back(std::move(row));
    }
    return boost::json::object{{"jobs", jobs.size()}, {"ratio_min", lowest}, {"ratio_max", highest}, {"each", rows}};
}

void print(const boost::json::array& runs) {
    cli::Table table({">jobs", ">granted", ">measured", ">ratio"});
    for (const auto& run : runs) {
        for (const auto& job : run.at("each").as_array()) {
            char ratio[16];
            std::snprintf(ratio, sizeof ratio, "%.4f", job.at("ratio").as_double());
            table.add({cli::format_count(run.at("jobs").to_number<std::uint64_t>()),
                       format_bytes_per_second(job.at("granted").as_double()),
                       format_bytes_per_second(job.at("measured").as_double()), ratio});
        }
    }
    std::printf("%s", table.text().c_str());
}

}  // namespace

Result<boost::json::value> miss(const BenchOptions& options) {
    if (options.bytes_per_second && *options.bytes_per_second <= 0) {
        return fail(ErrorCode::invalid_argument, "--rate: without a grant there is no rate to compare misses with");
    }
    auto work = WorkDirectory::make(options.directory);
    if (!work) return std::unexpected(work.error());
    const auto dataset = find_data(options, *work);
    if (!dataset) return std::unexpected(dataset.error());
    auto daemon = DaemonProcess::start({.state_directory = *work / "state"});
    if (!daemon) return std::unexpected(daemon.error());
    const double seconds = options.quick ? 2 : 10;
    boost::json::array runs;
    const double one = options.bytes_per_second.value_or(100e6);
    const double eight = options.bytes_per_second.value_or(195e6);
    for (const std::vector<double>& rates : {std::vector<double>{one}, split_by_shares(eight)}) {
        const auto run = run_jobs(*daemon, *dataset, rates, seconds, options.quick);
        if (!run) return std::unexpected(run.error());
        runs.push_back(*run);
    }
    if (!options.json) print(runs);
    return boost::json::object{{"seconds", seconds}, {"runs", runs}};
}

}  // namespace larder::bench
