#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <cstdio>
#include <stop_token>
#include <thread>

#include "base/clock.h"
#include "base/units.h"
#include "cache/dataset/pack.h"
#include "tools/cli/api.h"
#include "tools/cli/context.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/options.h"
#include "tools/cli/progress.h"
#include "tools/cli/table.h"

namespace larder::cli {
namespace {

constexpr std::int64_t kDrawEveryNs = 100'000'000;

// Asks for a stop at Ctrl-C, so that an unfinished directory is removed.
class StopAtInterrupt {
public:
    std::stop_token token() const { return source_.get_token(); }

private:
    InterruptWatch watch_;
    std::stop_source source_;
    std::jthread thread_{[this](const std::stop_token& over) {
        while (!over.stop_requested()) {
            if (watch_.pressed_within(100)) source_.request_stop();
        }
    }};
};

int pack(const Context& context, const cache::PackRequest& request) {
    const SteadyClock clock;
    const std::int64_t start_ns = clock.now_ns();
    std::int64_t drawn_ns = 0;
    Progress progress("packing " + request.destination);
    const auto draw = [&](const cache::IndexProgress& now) {
        const std::int64_t now_ns = clock.now_ns();
        if (now_ns - drawn_ns < kDrawEveryNs) return;
        drawn_ns = now_ns;
        progress.show({.done = now.objects_done,
                       .total = now.objects_total,
                       .unit = "objects",
                       .bytes_done = now.bytes_done,
                       .seconds = static_cast<double>(now_ns - start_ns) / 1e9});
    };
    const StopAtInterrupt interrupt;
    const auto packed = cache::pack_webdataset(request, draw, interrupt.token());
    progress.finish();
    if (!packed) return report(context, packed.error());
    const double seconds = static_cast<double>(clock.now_ns() - start_ns) / 1e9;
    if (context.json) {
        boost::json::array notes;
        for (const std::string& note : packed->notes) notes.emplace_back(note);
        print_json(boost::json::object{{"destination", request.destination},
                                       {"shards", packed->shard_count},
                                       {"samples", packed->sample_count},
                                       {"classes", packed->class_count},
                                       {"payload_bytes", packed->payload_bytes},
                                       {"seconds", seconds},
                                       {"notes", std::move(notes)}});
        return kDone;
    }
    std::printf("packed %s samples, %s, into %s shards in %s\n", format_count(packed->sample_count).c_str(),
                format_bytes(packed->payload_bytes).c_str(), format_count(packed->shard_count).c_str(),
                format_seconds(seconds).c_str());
    for (const std::string& note : packed->notes) std::printf("note: %s\n", note.c_str());
    return kDone;
}

}  // namespace

void add_pack_command(CLI::App& dataset, Context& context) {
    struct Options {
        cache::PackRequest request;
        std::string format = "webdataset";
        std::optional<std::uint64_t> shard_bytes;
    };
    auto options = std::make_shared<Options>();
    CLI::App* app = dataset.add_subcommand("pack", "Pack a directory of files into tar shards; needs no daemon");
    app->add_option("SOURCE", options->request.source, "The directory")->required();
    app->add_option("DESTINATION", options->request.destination, "The directory to make")->required();
    app->add_option("--format", options->format, "Of the shards")->check(CLI::IsMember({"webdataset"}));
    app->add_option("--shard-name", options->request.shard_name, "What their names begin with. Default: shard");
    add_bytes_option(*app, "--shard-size", options->shard_bytes, "Of one shard at most. Default: 256MiB");
    app->callback([&context, options] {
        if (options->shard_bytes) options->request.shard_bytes = *options->shard_bytes;
        context.command = [&context, options] { return pack(context, options->request); };
    });
}

}  // namespace larder::cli
