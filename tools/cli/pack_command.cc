#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <stop_token>
#include <thread>

#include "base/clock.h"
#include "base/units.h"
#include "cache/control/remote_json.h"
#include "cache/dataset/pack.h"
#include "cache/remote/http_transfers.h"
#include "cache/remote/remote_url.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/context.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/cli/remote_flags.h"
#include "tools/cli/table.h"
#include "tools/cli/unit_options.h"

namespace larder::cli {
namespace {

constexpr std::int64_t kDrawEveryNs = 100'000'000;

// Asks for a stop on Ctrl-C, so that an unfinished directory is removed.
class StopAtInterrupt {
public:
    std::stop_token token() const { return source_.get_token(); }

private:
    InterruptWatch watch_;
    std::stop_source source_;
    std::jthread thread_{[this](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
            if (watch_.pressed_within(100)) source_.request_stop();
        }
    }};
};

// Parses "none", "zstd" or "zstd:LEVEL".
Result<std::optional<int>> parse_compression(const std::string& text) {
    if (text == "none") return std::nullopt;
    if (text == "zstd") return 3;
    int level = 0;
    const char* begin = text.data() + std::min<std::size_t>(text.size(), 5);
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(begin, end, level);
    if (!text.starts_with("zstd:") || error != std::errc{} || rest != end || level < 1 || level > 19) {
        return fail(ErrorCode::invalid_argument,
                    "compression \"" + text + "\" is not none, zstd or zstd:LEVEL with a level of 1 to 19");
    }
    return level;
}

bool is_on_the_network(const std::string& source) {
    return source.find("://") != std::string::npos && !source.starts_with("file://");
}

int pack(const Context& context, cache::PackRequest request, const std::string& ca_file) {
    std::unique_ptr<cache::HttpTransfers> transfers;
    if (is_on_the_network(request.source.url)) {
        auto started = cache::HttpTransfers::start({.settings = {.ca_file = ca_file}});
        if (!started) return report(context, started.error());
        transfers = std::move(*started);
        request.transfers = transfers.get();
    }
    const SteadyClock clock;
    const std::int64_t start_ns = clock.now_ns();
    std::int64_t drawn_ns = 0;
    ProgressLine progress("packing " + request.destination);
    const auto draw = [&](const cache::IndexProgress& now) {
        const std::int64_t now_ns = clock.now_ns();
        if (now_ns - drawn_ns < kDrawEveryNs) return;
        drawn_ns = now_ns;
        progress.show({.done = now.objects_done,
                       .total = now.objects_total,
                       .unit = "samples",
                       .bytes_done = now.bytes_done,
                       .seconds = static_cast<double>(now_ns - start_ns) / 1e9});
    };
    const StopAtInterrupt interrupt;
    const auto packed = cache::pack_dataset(request, draw, interrupt.token());
    progress.finish();
    if (!packed) return report(context, packed.error());
    const double seconds = static_cast<double>(clock.now_ns() - start_ns) / 1e9;
    if (context.json) {
        boost::json::array notes;
        for (const std::string& note : packed->notes) notes.emplace_back(note);
        print_json(boost::json::object{{"destination", request.destination},
                                       {"source_format", name(packed->source_format)},
                                       {"shards", packed->shard_count},
                                       {"samples", packed->sample_count},
                                       {"classes", packed->class_count},
                                       {"payload_bytes", packed->payload_bytes},
                                       {"seconds", seconds},
                                       {"notes", std::move(notes)}});
        return kDone;
    }
    std::printf("packed %s, %s, into %s in %s\n", format_counted(packed->sample_count, "sample").c_str(),
                format_bytes(packed->payload_bytes).c_str(), format_counted(packed->shard_count, "shard").c_str(),
                format_seconds(seconds).c_str());
    for (const std::string& note : packed->notes) std::printf("note: %s\n", note.c_str());
    return kDone;
}

}  // namespace

void add_pack_command(CLI::App& dataset, Context& context) {
    struct Options {
        cache::PackRequest request;
        std::string format = "webdataset";
        std::string source_format;
        std::string block;
        std::string compression;
        std::optional<std::uint64_t> shard_bytes;
        RemoteChoice remote;
        std::string ca_file;
    };
    auto options = std::make_shared<Options>();
    CLI::App* app = dataset.add_subcommand(
        "pack", "Rewrite a dataset in another directory into shards that are fast to read; needs no daemon");
    app->add_option("SOURCE", options->request.source.url,
                    "A directory or URL of a dataset, in any format that larder dataset add accepts")
        ->required();
    app->add_option("DESTINATION", options->request.destination, "The directory to create")->required();
    add_remote_options(*app, options->remote, "your");
    app->add_option("--ca-file", options->ca_file,
                    "PEM file of the CAs to trust for remotes over TLS. Default: the system's CAs");
    app->add_option("--format", options->format, "Format of the shards: webdataset (tars) or larder (packed blocks)")
        ->check(CLI::IsMember({"webdataset", "larder"}));
    app->add_option("--source-format", options->source_format,
                    "Format of the source. Default: detected from the files");
    app->add_option("--tokens-per-sample", options->request.source.tokens_per_sample,
                    "For sources of tokens: length of a sample, in tokens")
        ->check(CLI::Range(1u, cache::kTokensPerSampleMax));
    app->add_option("--shard-name", options->request.shard_name, "Prefix of the shards' names. Default: shard");
    add_bytes_option(*app, "--shard-size", options->shard_bytes, "Most bytes in one shard. Default: 256MiB");
    app->add_option("--block", options->block,
                    "For larder: the unit that is fetched and cached: sample, object, or a size. Default: 4MiB");
    app->add_option(
        "--compression", options->compression,
        "For larder: compression of blocks that shrink by more than 10 %: none, zstd or zstd:LEVEL. Default: none");
    app->callback([&context, options] {
        context.command = [&context, options] {
            cache::PackRequest& request = options->request;
            const auto format = cache::parse_format(options->format);
            if (!format) return report(context, format.error());
            request.format = *format;
            if (request.format != protocol::Format::larder && !(options->block + options->compression).empty()) {
                return report(context,
                              Error{ErrorCode::invalid_argument, "--block and --compression are for --format larder"});
            }
            request.source.url = url_of(request.source.url);
            if (auto checked = options->remote.check(); !checked) return report(context, checked.error());
            const auto remote = cache::read_remote(options->remote.json(), "options");
            if (!remote) return report(context, remote.error());
            if (auto checked = cache::check_remote_options(*remote, request.source.url); !checked) {
                return report(context, checked.error());
            }
            request.source.remote = *remote;
            if (options->shard_bytes) request.shard_bytes = *options->shard_bytes;
            if (!options->source_format.empty()) {
                const auto source_format = cache::parse_format(options->source_format);
                if (!source_format) return report(context, source_format.error());
                request.source.format = *source_format;
            }
            if (!options->block.empty()) {
                const auto block = cache::parse_block_goal(options->block);
                if (!block) return report(context, block.error());
                request.block = *block;
            }
            if (!options->compression.empty()) {
                const auto level = parse_compression(options->compression);
                if (!level) return report(context, level.error());
                request.zstd_level = *level;
            }
            return pack(context, request, options->ca_file);
        };
    });
}

}  // namespace larder::cli
