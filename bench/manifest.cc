// How soon is a dataset of ten million samples open, and what does a sample cost in its manifest? Loaders and the
// daemon map the manifest as it is, so opening should take as long as reading one page, not the whole file.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/units.h"
#include "bench/bench_options.h"
#include "bench/median.h"
#include "bench/work_directory.h"
#include "cache/dataset/manifest_writer.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

constexpr std::uint32_t kClasses = 1000;
constexpr std::uint64_t kSampleBytes = 110'000;
constexpr std::uint64_t kSamplesPerBlock = 64;
constexpr std::uint64_t kBlocksPerShard = 160;

// Returns eight digits such as 00000042, as in the file names of large datasets.
std::array<char, 8> eight_digits(std::uint64_t number) {
    std::array<char, 8> digits;
    digits.fill('0');
    std::array<char, 20> written{};
    const auto end = std::to_chars(written.data(), written.data() + written.size(), number).ptr;
    std::copy(written.data(), end, digits.end() - (end - written.data()));
    return digits;
}

cache::DatasetContent files(std::uint64_t samples) {
    cache::DatasetContent content;
    content.objects.reserve(samples);
    for (std::uint32_t label = 0; label < kClasses; ++label)
        content.classes.push_back("class-" + std::to_string(label));
    for (std::uint64_t i = 0; i < samples; ++i) {
        const auto name = eight_digits(i);
        content.add_object({name.data(), name.size()}, kSampleBytes, 0, static_cast<std::uint32_t>(i % kClasses));
    }
    return content;
}

cache::DatasetContent shards(std::uint64_t samples) {
    cache::DatasetContent content;
    content.samples.reserve(samples);
    for (std::uint64_t first = 0; first < samples; first += kSamplesPerBlock) {
        const std::uint64_t block = first / kSamplesPerBlock;
        if (block % kBlocksPerShard == 0) {
            const auto name = eight_digits(block / kBlocksPerShard);
            content.add_object({name.data(), name.size()}, 0, 0, protocol::kNoLabel);
            content.objects.back().first_block = static_cast<std::uint32_t>(block);
            content.objects.back().block_count = 0;
        }
        auto& shard = content.objects.back();
        const auto count = static_cast<std::uint32_t>(std::min(kSamplesPerBlock, samples - first));
        content.blocks.push_back({shard.size_bytes, static_cast<std::uint32_t>(count * kSampleBytes),
                                  static_cast<std::uint32_t>(content.samples.size()), count});
        for (std::uint32_t i = 0; i < count; ++i) {
            content.samples.push_back({.offset = static_cast<std::uint32_t>(i * kSampleBytes),
                                       .length = static_cast<std::uint32_t>(kSampleBytes)});
        }
        shard.size_bytes += count * kSampleBytes;
        ++shard.block_count;
    }
    return content;
}

template <typename Work>
Result<double> milliseconds(const Clock& clock, int rounds, Work work) {
    std::vector<double> times_ms;
    for (int i = 0; i < rounds; ++i) {
        const std::int64_t began_ns = clock.now_ns();
        if (auto done = work(); !done) return std::unexpected(done.error());
        times_ms.push_back(static_cast<double>(clock.now_ns() - began_ns) * 1e-6);
    }
    return median(times_ms);
}

Result<boost::json::object> measure(const BenchOptions& options, const WorkDirectory& work, protocol::Format format,
                                    cache::DatasetContent content) {
    const std::string path = work / (format == protocol::Format::raw ? "files" : "shards");
    const auto written = cache::write_manifest(content, {.url = "file:///data", .format = format}, {.path = path});
    if (!written) return std::unexpected(written.error());
    const std::uint64_t name_bytes = content.names.size();
    content = {};

    const SteadyClock clock;
    const int rounds = options.quick ? 3 : 21;
    std::vector<char> read(std::size_t{1} << 20);
    const auto open = [&]() -> Result<void> {
        const auto manifest = protocol::Manifest::open(path);
        if (!manifest) return std::unexpected(manifest.error());
        if (manifest->sample_count() != written->sample_count) return fail(ErrorCode::corrupt, "samples are missing");
        return {};
    };
    const auto read_up_to = [&](std::uint64_t bytes) -> Result<void> {
        const auto file = open_file(path, O_RDONLY);
        if (!file) return std::unexpected(file.error());
        ssize_t got = 0;
        for (std::uint64_t at = 0;
             at < bytes && (got = ::read(file->get(), read.data(), std::min(bytes - at, read.size()))) > 0;) {
            at += static_cast<std::uint64_t>(got);
        }
        if (got < 0) return fail(ErrorCode::io, "cannot read " + path);
        return {};
    };
    const std::uint64_t bytes = std::filesystem::file_size(path);
    const auto open_ms = milliseconds(clock, rounds, open);
    const auto page_ms = milliseconds(clock, rounds, [&] { return read_up_to(4096); });
    const auto whole_ms = milliseconds(clock, options.quick ? 1 : 3, [&] { return read_up_to(bytes); });
    for (const auto* time_ms : {&open_ms, &page_ms, &whole_ms}) {
        if (!*time_ms) return std::unexpected(time_ms->error());
    }
    return boost::json::object{
        {"format", format == protocol::Format::raw ? "raw" : "webdataset"},
        {"samples", written->sample_count},
        {"bytes", bytes},
        {"bytes_per_sample", static_cast<double>(bytes - name_bytes) / static_cast<double>(written->sample_count)},
        {"open_ms", *open_ms},
        {"read_page_ms", *page_ms},
        {"read_whole_ms", *whole_ms}};
}

void print_manifests(const boost::json::array& runs) {
    cli::Table table(
        {"dataset of", ">samples", ">manifest", ">a sample, without names", ">open", ">read a page", ">read it all"});
    for (const auto& run : runs) {
        const auto text = [&](const char* key, const char* unit) {
            char figure[32];
            std::snprintf(figure, sizeof figure, "%.3g %s", run.at(key).to_number<double>(), unit);
            return std::string(figure);
        };
        table.add({run.at("format") == "raw" ? "files" : "tar shards",
                   cli::format_count(run.at("samples").to_number<std::uint64_t>()),
                   format_bytes(run.at("bytes").to_number<std::uint64_t>()), text("bytes_per_sample", "B"),
                   text("open_ms", "ms"), text("read_page_ms", "ms"), text("read_whole_ms", "ms")});
    }
    std::printf("%s", table.text().c_str());
}

}  // namespace

Result<boost::json::value> manifest(const BenchOptions& options) {
    const std::uint64_t samples = options.quick ? 100'000 : 10'000'000;
    const auto work = WorkDirectory::make(options.directory);
    if (!work) return std::unexpected(work.error());
    boost::json::array runs;
    for (const auto format : {protocol::Format::raw, protocol::Format::webdataset}) {
        auto run = measure(options, *work, format, format == protocol::Format::raw ? files(samples) : shards(samples));
        if (!run) return std::unexpected(run.error());
        runs.push_back(std::move(*run));
    }
    if (!options.json) print_manifests(runs);
    return runs;
}

}  // namespace larder::bench
