// How many samples a second does the layout of a dataset allow? Reads the same tokens, in windows of 2049, in random
// order, touching every token: as JSONL with a parse per sample (Boost.JSON), as Megatron's .bin through a plain loop
// over an mmap, and through Larder from memory, both as Megatron's files and packed. All files are in the page cache;
// everything runs on one core. Each round runs all four readers for the same time. The medians over the rounds are the
// result, because machines drift.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/units.h"
#include "bench/bench_options.h"
#include "bench/daemon_process.h"
#include "bench/median.h"
#include "bench/token_files.h"
#include "bench/work_directory.h"
#include "cache/dataset/pack.h"
#include "loader/larder.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

constexpr std::uint32_t kTokens = 2049;
constexpr std::uint32_t kBatch = 32;
constexpr const char* kBlock = "4MiB";

std::uint64_t sum_tokens(const std::byte* data, std::size_t count) {
    const auto* tokens = reinterpret_cast<const std::int32_t*>(data);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += static_cast<std::uint32_t>(tokens[i]);
    return sum;
}

// The samples that a reader has read so far.
struct Counted {
    std::uint64_t samples = 0;
    std::uint64_t sum = 0;  // of the tokens
};
// Reads the next batch, epoch after epoch, and adds its counts.
using ReadBatch = std::function<Result<void>(Counted& counted)>;

class RandomOrder {
public:
    explicit RandomOrder(std::uint64_t count) : order_(count) { std::iota(order_.begin(), order_.end(), 0); }
    std::uint64_t next() {
        if (at_ == order_.size()) at_ = 0;
        if (at_ == 0) {
            ++epoch_;
            std::ranges::sort(order_, {}, [this](std::uint64_t i) { return mix64(i + epoch_ * 0x9e3779b97f4a7c15); });
        }
        return order_[at_++];
    }

private:
    std::vector<std::uint64_t> order_;
    std::uint64_t at_ = 0;
    std::uint64_t epoch_ = 0;
};

Result<Mapping> map_file(const std::string& path, std::uint64_t bytes) {
    auto file = open_file(path, O_RDONLY);
    if (!file) return std::unexpected(file.error());
    return Mapping::of(file->get(), bytes, Mapping::Access::read_only);
}

Result<ReadBatch> jsonl_reader(const TokenFiles& files) {
    auto mapped = map_file(files.jsonl, files.lines.back());
    if (!mapped) return std::unexpected(mapped.error());
    auto file = std::make_shared<Mapping>(std::move(*mapped));
    return [&files, file, order = RandomOrder(files.windows)](Counted& counted) mutable -> Result<void> {
        for (std::uint32_t i = 0; i < kBatch; ++i) {
            const std::uint64_t line = order.next();
            const auto* text = reinterpret_cast<const char*>(file->data()) + files.lines[line];
            const auto parsed = boost::json::parse({text, files.lines[line + 1] - files.lines[line] - 1});
            std::vector<std::int32_t> tokens;
            tokens.reserve(kTokens);
            for (const auto& token : parsed.at("tokens").as_array()) {
                tokens.push_back(static_cast<std::int32_t>(token.as_int64()));
            }
            counted.sum += sum_tokens(reinterpret_cast<const std::byte*>(tokens.data()), tokens.size());
            ++counted.samples;
        }
        return {};
    };
}

Result<ReadBatch> mmap_reader(const TokenFiles& files) {
    auto mapped = map_file(files.megatron + "/text.bin", files.windows * files.window_bytes());
    if (!mapped) return std::unexpected(mapped.error());
    auto file = std::make_shared<Mapping>(std::move(*mapped));
    return [&files, file, order = RandomOrder(files.windows)](Counted& counted) mutable -> Result<void> {
        for (std::uint32_t i = 0; i < kBatch; ++i) {
            counted.sum += sum_tokens(file->data() + order.next() * files.window_bytes(), kTokens);
        }
        counted.samples += kBatch;
        return {};
    };
}

Result<ReadBatch> larder_reader(const DaemonProcess& daemon, const std::string& dataset) {
    auto opened = Loader::open({{.dataset = dataset, .job = dataset, .socket = daemon.socket()}, 1, true, 16, kBatch});
    if (!opened) return std::unexpected(opened.error());
    auto loader = std::make_shared<Loader>(std::move(*opened));
    return [loader](Counted& counted) -> Result<void> {
        auto batch = loader->next();
        if (!batch) return std::unexpected(batch.error());
        if (!*batch) return {};  // the next epoch begins
        for (const Sample& sample : (*batch)->samples()) {
            counted.sum += sum_tokens(sample.bytes().data(), sample.bytes().size() / sizeof(std::int32_t));
        }
        counted.samples += (*batch)->samples().size();
        return {};
    };
}

struct Layout {
    std::string name;
    ReadBatch read;
    std::vector<double> rates = {};
    std::uint64_t epoch_sum = 0;  // of the first epoch
};

// Reads one epoch, which warms the caches, and keeps the sum of its tokens.
Result<void> read_epoch(Layout& layout, std::uint64_t samples) {
    Counted counted;
    while (counted.samples < samples) {
        if (auto read = layout.read(counted); !read) return read;
    }
    layout.epoch_sum = counted.sum;
    return {};
}

Result<void> measure(Layout& layout, double seconds) {
    Counted counted;
    const std::int64_t began_ns = SteadyClock().now_ns();
    double elapsed = 0;
    while (elapsed < seconds) {
        for (int i = 0; i < 8; ++i) {
            if (auto read = layout.read(counted); !read) return read;
        }
        elapsed = seconds_since(SteadyClock(), began_ns);
    }
    layout.rates.push_back(static_cast<double>(counted.samples) / elapsed);
    return {};
}

double median_ratio(const Layout& a, const Layout& b) {
    std::vector<double> ratios;
    ratios.reserve(a.rates.size());
    for (std::size_t i = 0; i < a.rates.size(); ++i) ratios.push_back(a.rates[i] / b.rates[i]);
    return median(ratios);
}

Result<void> add_datasets(DaemonProcess& daemon, const WorkDirectory& work, const TokenFiles& files) {
    // Set field by field: g++ 12 at -O3 warns that strings of a braced initialiser are uninitialised.
    cache::PackRequest request;
    request.source.url = files.megatron;
    request.source.tokens_per_sample = kTokens;
    request.destination = work / "packed";
    request.format = protocol::Format::larder;
    const auto packed = cache::pack_dataset(request, {}, {});
    if (!packed) return std::unexpected(packed.error());
    const std::uint64_t quota = files.windows * files.window_bytes() * 5 / 4 + (std::uint64_t{64} << 20);
    for (const DatasetOptions& dataset :
         {DatasetOptions{.name = "megatron",
                         .directory = files.megatron,
                         .format = "megatron",
                         .block = kBlock,
                         .tokens_per_sample = kTokens,
                         .quota_memory_bytes = quota},
          DatasetOptions{
              .name = "packed", .directory = work / "packed", .format = "larder", .quota_memory_bytes = quota}}) {
        if (auto added = daemon.add_dataset(dataset); !added) return added;
        if (auto warmed = daemon.warm(dataset.name); !warmed) return warmed;
    }
    return {};
}

void print(const std::vector<Layout>& layouts) {
    cli::Table table({"layout", ">samples/s", ">tokens/s", ">packed is"});
    for (const Layout& layout : layouts) {
        char times[16];
        std::snprintf(times, sizeof times, "%.2f x", median_ratio(layouts.back(), layout));
        const double rate = median(layout.rates);
        table.add({layout.name, cli::format_count(static_cast<std::uint64_t>(rate)),
                   cli::format_count(static_cast<std::uint64_t>(rate * kTokens)), times});
    }
    std::printf("%s", table.text().c_str());
}

}  // namespace

Result<boost::json::value> layout(const BenchOptions& options) {
    auto work = WorkDirectory::make(options.directory);
    if (!work) return std::unexpected(work.error());
    const std::uint64_t windows = options.quick ? 2048 : 65536;
    const auto files = write_token_files(work->path(), windows, kTokens);
    if (!files) return std::unexpected(files.error());
    auto daemon = DaemonProcess::start({.state_directory = *work / "state"});
    if (!daemon) return std::unexpected(daemon.error());
    if (auto added = add_datasets(*daemon, *work, *files); !added) return std::unexpected(added.error());

    auto jsonl = jsonl_reader(*files);
    if (!jsonl) return std::unexpected(jsonl.error());
    auto mapped = mmap_reader(*files);
    if (!mapped) return std::unexpected(mapped.error());
    auto megatron = larder_reader(*daemon, "megatron");
    if (!megatron) return std::unexpected(megatron.error());
    auto packed = larder_reader(*daemon, "packed");
    if (!packed) return std::unexpected(packed.error());
    std::vector<Layout> layouts{{"JSONL, a parse per sample", std::move(*jsonl)},
                                {"Megatron .bin, plain mmap", std::move(*mapped)},
                                {"Megatron through Larder", std::move(*megatron)},
                                {"packed through Larder", std::move(*packed)}};
    for (Layout& each : layouts) {
        if (auto read = read_epoch(each, windows); !read) return std::unexpected(read.error());
        if (each.epoch_sum != layouts.front().epoch_sum) {
            return fail(ErrorCode::internal, each.name + " gave other tokens than " + layouts.front().name);
        }
    }
    const int rounds = options.quick ? 3 : 9;
    for (int round = 0; round < rounds; ++round) {
        for (Layout& each : layouts) {
            if (auto measured = measure(each, options.quick ? 0.1 : 2); !measured) {
                return std::unexpected(measured.error());
            }
        }
    }
    if (!options.json) print(layouts);
    boost::json::array rows;
    for (const Layout& each : layouts) {
        rows.push_back({{"layout", each.name}, {"samples_per_second", median(each.rates)}});
    }
    return boost::json::object{{"samples", windows},
                               {"tokens_per_sample", kTokens},
                               {"token_sum", layouts.front().epoch_sum},
                               {"layouts", rows},
                               {"packed_to_jsonl", median_ratio(layouts[3], layouts[0])},
                               {"packed_to_mmap", median_ratio(layouts[3], layouts[1])}};
}

}  // namespace larder::bench
