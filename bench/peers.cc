// How fast are blocks from another node's cache? Runs two daemons on this machine: one holds the whole dataset in
// memory, the other may cache nothing, so its job gets every block from the first. Compares with the same job on the
// first daemon, and with one connection over the loopback.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bench/bench_options.h"
#include "bench/daemon_process.h"
#include "bench/larder_feeder.h"
#include "bench/loopback.h"
#include "bench/median.h"
#include "bench/work_directory.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

constexpr const char* kLentDataset = "peers";

struct Lending {
    DaemonProcess holder;
    DaemonProcess borrower;
};

Result<std::string> write_token(const std::string& path) {
    std::random_device device;
    std::ofstream(path) << device() << device() << "\n";
    std::error_code error;
    std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write, error);
    if (error) return fail_errno(error.value(), "protect " + path);
    return path;
}

// Waits until the borrower knows that the other daemon holds all blocks.
Result<void> wait_until_held(const DaemonProcess& borrower, std::uint64_t blocks) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < until) {
        const auto status = borrower.status();
        if (!status) return std::unexpected(status.error());
        const boost::json::array& others = status->at("peers").at("others").as_array();
        if (others.size() == 1 && others[0].at("held_blocks").to_number<std::uint64_t>() == blocks) return {};
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return fail(ErrorCode::timeout, "the other node's cache was not seen within a minute");
}

Result<Lending> start_lending(const FileSet& files, std::uint64_t blocks, const std::string& directory) {
    const auto token = write_token(directory + ".token");
    if (!token) return std::unexpected(token.error());
    const DatasetOptions lent{
        .name = kLentDataset, .directory = files.directory, .quota_memory_bytes = 2 * files.total_bytes()};
    auto holder = DaemonProcess::start({.state_directory = directory + "h", .peers_token_file = *token});
    if (!holder) return std::unexpected(holder.error());
    if (auto added = holder->add_dataset(lent); !added) return std::unexpected(added.error());
    if (auto warmed = holder->warm(kLentDataset); !warmed) return std::unexpected(warmed.error());
    const auto status = holder->status();
    if (!status) return std::unexpected(status.error());
    auto borrower = DaemonProcess::start({.state_directory = directory + "b",
                                          .peers_token_file = *token,
                                          .peers_others = std::string(status->at("peers").at("endpoint").as_string())});
    if (!borrower) return std::unexpected(borrower.error());
    if (auto added = borrower->add_dataset({.name = kLentDataset, .directory = files.directory}); !added) {
        return std::unexpected(added.error());
    }
    if (auto held = wait_until_held(*borrower, blocks); !held) return std::unexpected(held.error());
    return Lending{std::move(*holder), std::move(*borrower)};
}

// Returns bytes per second of one epoch.
Result<double> epoch_rate(LarderFeeder& feeder) {
    const SteadyClock clock;
    const std::int64_t began_ns = clock.now_ns();
    const std::uint64_t before = feeder.totals().bytes;
    for (;;) {
        const auto batch = feeder.next();
        if (!batch) return std::unexpected(batch.error());
        if (!*batch) break;
    }
    const double seconds = seconds_since(clock, began_ns);
    return static_cast<double>(feeder.totals().bytes - before) / seconds;
}

Result<LarderFeeder> open_lending_feeder(const DaemonProcess& daemon, std::uint64_t block_bytes) {
    const auto window = static_cast<std::uint32_t>(std::max<std::uint64_t>(16, (std::uint64_t{4} << 20) / block_bytes));
    return LarderFeeder::open(
        {{.dataset = kLentDataset, .job = kLentDataset, .socket = daemon.socket()}, 1, true, window, 8});
}

Result<boost::json::object> measure_lending(std::uint64_t block_bytes, std::uint64_t bytes, int turns,
                                            const std::string& directory) {
    const std::uint64_t blocks = bytes / block_bytes;
    const auto files = write_files(directory + "-data", static_cast<std::uint32_t>(blocks), block_bytes);
    if (!files) return std::unexpected(files.error());
    auto pair = start_lending(*files, blocks, directory);
    if (!pair) return std::unexpected(pair.error());
    auto borrowing = open_lending_feeder(pair->borrower, block_bytes);
    auto holding = open_lending_feeder(pair->holder, block_bytes);
    if (!borrowing || !holding) return std::unexpected(!borrowing ? borrowing.error() : holding.error());
    const std::vector<std::byte> data(bytes, std::byte{1});
    std::vector<std::byte> received(bytes);
    std::vector<double> peer, local, loopback, to_loopback;
    for (int turn = 0; turn <= turns; ++turn) {
        const auto from_peer = epoch_rate(*borrowing);
        const auto from_here = epoch_rate(*holding);
        const auto limit = loopback_rate(data, received, block_bytes, static_cast<std::uint64_t>(turn));
        if (!from_peer) return std::unexpected(from_peer.error());
        if (!from_here) return std::unexpected(from_here.error());
        if (!limit) return std::unexpected(limit.error());
        if (turn == 0) continue;  // the first turn touches slots and buffers for the first time
        peer.push_back(*from_peer);
        local.push_back(*from_here);
        loopback.push_back(*limit);
        to_loopback.push_back(*from_peer / *limit);
    }
    const auto dataset = pair->borrower.dataset(kLentDataset);
    if (!dataset) return std::unexpected(dataset.error());
    const auto hits = dataset->at("counters").at("peer_hits").to_number<std::uint64_t>();
    const auto expected_hits = blocks * static_cast<std::uint64_t>(turns + 1);
    if (hits != expected_hits) {
        return fail(ErrorCode::internal, std::to_string(hits) + " of " + std::to_string(expected_hits) +
                                             " blocks came from the other node's cache");
    }
    return boost::json::object{{"block_bytes", block_bytes},
                               {"peer_hits", hits},
                               {"peer_bytes_per_second", median(peer)},
                               {"local_bytes_per_second", median(local)},
                               {"loopback_bytes_per_second", median(loopback)},
                               {"loopback_ratio", median(to_loopback)}};
}

void print_peers(const boost::json::array& rows) {
    cli::Table table({">block", ">from a peer", ">from here", ">loopback", ">of loopback"});
    for (const auto& row : rows) {
        char ratio[16];
        std::snprintf(ratio, sizeof ratio, "%.2f", row.at("loopback_ratio").as_double());
        table.add({format_bytes(row.at("block_bytes").to_number<std::uint64_t>()),
                   format_bytes_per_second(row.at("peer_bytes_per_second").as_double()),
                   format_bytes_per_second(row.at("local_bytes_per_second").as_double()),
                   format_bytes_per_second(row.at("loopback_bytes_per_second").as_double()), ratio});
    }
    std::printf("%s", table.text().c_str());
}

}  // namespace

Result<boost::json::value> peers(const BenchOptions& options) {
    auto work = WorkDirectory::make(options.directory);
    if (!work) return std::unexpected(work.error());
    const std::uint64_t bytes = std::uint64_t{options.quick ? 16U : 256U} << 20;
    boost::json::array rows;
    for (const std::uint64_t block_bytes : {std::uint64_t{128} << 10, std::uint64_t{1} << 20}) {
        const auto row = measure_lending(block_bytes, bytes, options.quick ? 2 : 9,
                                         *work / std::to_string(rows.size()));  // short, because sockets lie in it
        if (!row) return std::unexpected(row.error());
        rows.push_back(*row);
    }
    if (!options.json) print_peers(rows);
    return rows;
}

}  // namespace larder::bench
