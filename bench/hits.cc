// How fast are hits? Compares memory hits with a plain loop over an mmap'ed tmpfs file in the same random order,
// touching every byte, and disk hits with fio on the same file system, at the same block size and depth. Also counts
// how many small blocks a second one client gets. The two sides alternate, and the median of the pairs' ratios is the
// result, because machines drift.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/units.h"
#include "bench/bench_options.h"
#include "bench/daemon_process.h"
#include "bench/feeder.h"
#include "bench/fio.h"
#include "bench/median.h"
#include "bench/work_directory.h"
#include "loader/larder.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

struct Plan {
    std::uint64_t memory_dataset_bytes;
    std::uint64_t disk_dataset_bytes_min;
    std::uint32_t small_blocks;
    std::uint32_t pairs;
    double seconds;  // one measurement of small blocks takes half of this
    std::uint32_t disk_pairs;
    double disk_seconds;
    std::vector<std::uint64_t> memory_block_bytes;
    std::vector<std::uint64_t> disk_block_bytes;
};

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1024 * kKiB;
constexpr std::uint32_t kDepth = 32;  // concurrent disk reads, on both sides
// Larder delivers blocks in order, so blocks that have arrived wait for an earlier one. Twice the depth keeps kDepth
// reads in flight meanwhile.
constexpr std::uint32_t kSlots = 2 * kDepth;

Plan make_hits_plan(bool quick) {
    if (quick) return {32 * kMiB, 32 * kMiB, 2048, 2, 0.2, 2, 0.2, {128 * kKiB}, {128 * kKiB}};
    return {512 * kMiB, 1024 * kMiB, 65536, 7, 2, 21, 1, {128 * kKiB, kMiB}, {128 * kKiB, kMiB, 8 * kMiB}};
}

struct EpochResult {
    std::uint64_t bytes = 0;
    std::uint64_t samples = 0;
    std::uint64_t checksum = 0;
    double seconds = 0;
};

// Reads one epoch; `order`, if not null, receives the samples' indices.
Result<EpochResult> read_epoch(Loader& loader, bool every_byte, std::vector<std::uint64_t>* order) {
    EpochResult result;
    if (order != nullptr) order->clear();
    const std::int64_t began_ns = SteadyClock().now_ns();
    for (;;) {
        auto batch = loader.next();
        if (!batch) return std::unexpected(batch.error());
        if (!*batch) break;
        for (const Sample& sample : (*batch)->samples()) {
            const auto bytes = sample.bytes();
            result.checksum +=
                every_byte ? sum_bytes(bytes.data(), bytes.size()) : static_cast<std::uint64_t>(bytes[0]);
            result.bytes += bytes.size();
            ++result.samples;
            if (order != nullptr) order->push_back(sample.index);
        }
    }
    result.seconds = seconds_since(SteadyClock(), began_ns);
    return result;
}

// Copies the bytes of all files, one after the other, into a tmpfs file and maps it read-only.
Result<Mapping> tmpfs_copy(const FileSet& files) {
    const std::string path = "/dev/shm/larder-bench-" + std::to_string(::getpid());
    auto copy = open_file(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (!copy) return std::unexpected(copy.error());
    ::unlink(path.c_str());
    for (std::uint32_t i = 0; i < files.count; ++i) {
        char name[32];
        std::snprintf(name, sizeof name, "/%06u.bin", i);
        const auto content = read_file(files.directory + name);
        if (!content) return std::unexpected(content.error());
        if (::write(copy->get(), content->data(), content->size()) != static_cast<ssize_t>(content->size())) {
            return fail_errno(errno, "write " + path);
        }
    }
    return Mapping::of(copy->get(), files.total_bytes(), Mapping::Access::read_only);
}

struct HitsBench {
    DaemonProcess& daemon;
    const WorkDirectory& work;
    const Plan& plan;

    Result<FileSet> add_dataset(const std::string& name, std::uint64_t bytes, std::uint64_t block_bytes, bool on_disk) {
        auto files = write_files(work / name, static_cast<std::uint32_t>(bytes / block_bytes), block_bytes);
        if (!files) return files;
        const std::uint64_t quota = bytes + bytes / 2 + 64 * kMiB;
        if (auto added = daemon.add_dataset({.name = name,
                                             .directory = files->directory,
                                             .quota_memory_bytes = on_disk ? 0 : quota,
                                             .quota_disk_bytes = on_disk ? quota : 0});
            !added) {
            return std::unexpected(added.error());
        }
        return files;
    }

    // Returns a loader that has read epochs until one had no miss.
    Result<Loader> warm_loader(const std::string& name, std::uint32_t batch_size, std::uint64_t budget_bytes) {
        auto loader = Loader::open(
            {{.dataset = name, .job = name, .socket = daemon.socket(), .memory_budget_bytes = budget_bytes},
             1,
             true,
             16,
             batch_size});
        if (!loader) return loader;
        // Large blocks come from the page cache faster than they can be written. Blocks that come while too many wait
        // to be written are not admitted.
        for (int epoch = 0; epoch < 40; ++epoch) {
            const std::uint64_t misses = loader->statistics().remote_blocks;
            if (auto read = read_epoch(*loader, false, nullptr); !read) return std::unexpected(read.error());
            if (loader->statistics().remote_blocks == misses) return loader;
        }
        return fail(ErrorCode::internal, "dataset " + name + " was still not cached after 40 epochs");
    }

    Result<boost::json::object> measure_memory(std::uint64_t block_bytes) {
        const std::string name = "memory-" + std::to_string(block_bytes);
        const auto files = add_dataset(name, plan.memory_dataset_bytes, block_bytes, false);
        if (!files) return std::unexpected(files.error());
        const auto peer = tmpfs_copy(*files);
        if (!peer) return std::unexpected(peer.error());
        auto loader = warm_loader(name, 16, 256 * kMiB);
        if (!loader) return std::unexpected(loader.error());
        std::vector<double> ratios;
        std::vector<double> rates;
        std::vector<double> loop_rates;
        bool exact = true;
        std::vector<std::uint64_t> order;
        for (std::uint32_t pair = 0; pair < plan.pairs; ++pair) {
            const auto ours = read_epoch(*loader, true, &order);
            if (!ours) return std::unexpected(ours.error());
            const std::int64_t began_ns = SteadyClock().now_ns();
            std::uint64_t checksum = 0;
            for (const std::uint64_t index : order)
                checksum += sum_bytes(peer->data() + index * block_bytes, block_bytes);
            const double loop_seconds = seconds_since(SteadyClock(), began_ns);
            exact &= checksum == ours->checksum && ours->samples == files->count;
            rates.push_back(static_cast<double>(ours->bytes) / ours->seconds);
            loop_rates.push_back(static_cast<double>(files->total_bytes()) / loop_seconds);
            ratios.push_back(loop_seconds / ours->seconds);
        }
        if (!exact) return fail(ErrorCode::corrupt, "memory hits differ from the files");
        return boost::json::object{{"block_bytes", block_bytes},
                                   {"ratio", median(ratios)},
                                   {"larder_bytes_per_second", median(rates)},
                                   {"loop_bytes_per_second", median(loop_rates)}};
    }

    // Returns bytes per second over whole epochs for about `seconds`.
    static Result<double> measure_disk_rate(Loader& loader, double seconds) {
        std::uint64_t bytes = 0;
        const std::int64_t began_ns = SteadyClock().now_ns();
        while (seconds_since(SteadyClock(), began_ns) < seconds) {
            const auto ours = read_epoch(loader, false, nullptr);
            if (!ours) return std::unexpected(ours.error());
            bytes += ours->bytes;
        }
        return static_cast<double>(bytes) / seconds_since(SteadyClock(), began_ns);
    }

    Result<boost::json::object> measure_disk(std::uint64_t block_bytes) {
        const std::string name = "disk-" + std::to_string(block_bytes);
        // Enough blocks that the end of an epoch, where reads run out, does not matter.
        const std::uint64_t dataset_bytes =
            std::max(plan.disk_dataset_bytes_min, plan.disk_dataset_bytes_min / kMiB * block_bytes / 2);
        const auto files = add_dataset(name, dataset_bytes, block_bytes, true);
        if (!files) return std::unexpected(files.error());
        const FioOptions fio{.file = work / (name + ".fio"),
                             .file_bytes = dataset_bytes,
                             .block_bytes = block_bytes,
                             .depth = kDepth,
                             .seconds = plan.disk_seconds};
        if (auto prepared = fio_prepare(fio); !prepared) return std::unexpected(prepared.error());
        auto loader = warm_loader(name, 1, kSlots * (block_bytes + 4096));
        if (!loader) return std::unexpected(loader.error());
        std::vector<double> ratios;
        std::vector<double> rates;
        std::vector<double> fio_rates;
        const LoaderStatistics before = loader->statistics();
        for (std::uint32_t pair = 0; pair < plan.disk_pairs; ++pair) {
            double rate = 0, fio_rate = 0;
            for (const bool larder : {pair % 2 == 0, pair % 2 != 0}) {
                const auto measured = larder ? measure_disk_rate(*loader, plan.disk_seconds) : fio_random_read(fio);
                if (!measured) return std::unexpected(measured.error());
                (larder ? rate : fio_rate) = *measured;
            }
            rates.push_back(rate);
            fio_rates.push_back(fio_rate);
            ratios.push_back(rate / fio_rate);
        }
        const LoaderStatistics after = loader->statistics();
        if (after.remote_blocks != before.remote_blocks || after.disk_blocks == before.disk_blocks) {
            return fail(ErrorCode::internal, "disk hits did not come from disk");
        }
        ::unlink(fio.file.c_str());
        if (auto freed = daemon.set_quota(name, 0, 0); !freed) return std::unexpected(freed.error());
        return boost::json::object{{"block_bytes", block_bytes},
                                   {"depth", kDepth},
                                   {"ratio", median(ratios)},
                                   {"larder_bytes_per_second", median(rates)},
                                   {"fio_bytes_per_second", median(fio_rates)}};
    }

    Result<double> measure_small_blocks() {
        const auto files = add_dataset("small", std::uint64_t{plan.small_blocks} * 4096, 4096, false);
        if (!files) return std::unexpected(files.error());
        auto loader = warm_loader("small", 256, 256 * kMiB);
        if (!loader) return std::unexpected(loader.error());
        std::vector<double> rates;
        for (std::uint32_t i = 0; i < plan.pairs; ++i) {
            std::uint64_t samples = 0;
            const std::int64_t began_ns = SteadyClock().now_ns();
            while (seconds_since(SteadyClock(), began_ns) < plan.seconds / 2) {
                const auto epoch = read_epoch(*loader, false, nullptr);
                if (!epoch) return std::unexpected(epoch.error());
                samples += epoch->samples;
            }
            rates.push_back(static_cast<double>(samples) / seconds_since(SteadyClock(), began_ns));
        }
        return median(rates);
    }
};

double lowest_ratio(const boost::json::array& rows) {
    double lowest = rows.at(0).at("ratio").as_double();
    for (const auto& row : rows) lowest = std::min(lowest, row.at("ratio").as_double());
    return lowest;
}

void print(const boost::json::object& result) {
    cli::Table table({"hits from", ">block", ">larder", "peer", ">peer's rate", ">ratio"});
    const auto add = [&](const char* tier, const char* peer, const char* peer_key, const boost::json::value& row) {
        char ratio[16];
        std::snprintf(ratio, sizeof ratio, "%.3f", row.at("ratio").as_double());
        table.add({tier, format_bytes(row.at("block_bytes").to_number<std::uint64_t>()),
                   format_bytes_per_second(row.at("larder_bytes_per_second").as_double()), peer,
                   format_bytes_per_second(row.at(peer_key).as_double()), ratio});
    };
    for (const auto& row : result.at("memory").as_array()) add("memory", "mmap loop", "loop_bytes_per_second", row);
    for (const auto& row : result.at("disk").as_array()) add("disk", "fio", "fio_bytes_per_second", row);
    std::printf("%s4 KiB memory hits, one client: %s blocks/s\n", table.text().c_str(),
                cli::format_count(static_cast<std::uint64_t>(result.at("blocks_per_second_4k").as_double())).c_str());
}

}  // namespace

Result<boost::json::value> hits(const BenchOptions& options) {
    const Plan plan = make_hits_plan(options.quick);
    auto work = WorkDirectory::make(options.directory);
    if (!work) return std::unexpected(work.error());
    auto daemon = DaemonProcess::start({.state_directory = *work / "state", .disk_reads_max = kDepth});
    if (!daemon) return std::unexpected(daemon.error());
    HitsBench bench{*daemon, *work, plan};
    boost::json::array memory;
    for (const std::uint64_t block_bytes : plan.memory_block_bytes) {
        const auto row = bench.measure_memory(block_bytes);
        if (!row) return std::unexpected(row.error());
        memory.push_back(*row);
    }
    const auto small = bench.measure_small_blocks();
    if (!small) return std::unexpected(small.error());
    boost::json::array disk;
    for (const std::uint64_t block_bytes : plan.disk_block_bytes) {
        const auto row = bench.measure_disk(block_bytes);
        if (!row) return std::unexpected(row.error());
        disk.push_back(*row);
    }
    boost::json::object result{{"memory_ratio", lowest_ratio(memory)},
                               {"disk_ratio", lowest_ratio(disk)},
                               {"blocks_per_second_4k", *small},
                               {"memory", memory},
                               {"disk", disk}};
    if (!options.json) print(result);
    return result;
}

}  // namespace larder::bench
