#include "bench/bench.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <string>

#include "base/server/json_text.h"
#include "bench/bench_options.h"
#include "bench/joint_scenario.h"
#include "tools/cli/describe_program.h"
#include "tools/cli/unit_options.h"
#include "tools/cli/usage_error.h"

namespace larder::bench {
namespace {

struct Entry {
    const char* name;
    Bench run;
    const char* question;
};

constexpr Entry kBenches[] = {
    {"hits", hits, "how fast are memory and disk hits, compared with an mmap loop and fio?"},
    {"python", python, "how fast is the Python loader, compared with open().read() and WebDataset?"},
    {"dlio", dlio,
     "how many emulated accelerators does this machine feed, by DLIO with an MLPerf-derived configuration?"},
    {"curve", curve, "how does throughput grow with cache size, compared with the model and LRU?"},
    {"shared", shared, "what do jobs on one dataset cost the remote, in seeded and in shared order?"},
    {"miss", miss, "do misses come at the granted rate?"},
    {"peers", peers, "how fast are blocks from another node's cache, compared with the node's own and the loopback?"},
    {"layout", layout, "how many token samples a second do JSONL, Megatron's files and packed files give?"},
    {"compression", compression,
     "what does compressing the cache gain and cost, for data that shrinks and data that does not?"},
    {"start", start, "how soon is a restarted daemon useful, and what does it keep in memory?"},
    {"manifest", manifest,
     "how soon is a dataset of ten million samples open, and what does a sample cost in its manifest?"},
    {"sessions", sessions, "how long from opening a loader to its first batch, and what does a session cost?"},
    {"assign", assign, "how long does a plan for thousands of jobs take, compared with a linear program?"},
    {"optimum", optimum, "how far are plans for small clusters from the best plans there are?"},
    {"joint", joint, "do several jobs on several nodes read as predicted, and better than with static shares or LRU?"},
    {"reality", reality, "how long do six jobs on four nodes take, compared with the simulator's prediction?"},
    {"lru", lru_bench, "does the simulated LRU have the same hits as an LRU of blocks?"},
    {"simulate", simulate, "how long do months of a cluster take to simulate, and how much memory?"},
    {"decide", decide_bench, "how long does a full decision take for 10,000 running jobs on 4,000 nodes?"},
    {"reports", reports, "how much of a core do 4,000 nodes' reports a second take?"},
};

}  // namespace

int bench_main(int argc, char** argv) {
    CLI::App app("Measure Larder on this machine against a peer or a limit", "larder bench");
    BenchOptions options;
    app.require_subcommand(1);
    for (const Entry& entry : kBenches) {
        CLI::App* command = app.add_subcommand(entry.name, entry.question);
        command->add_flag("--quick", options.quick,
                          "finish in under 20 s; counts are exact, but do not quote the speeds");
        command->add_flag("--json", options.json, "print JSON instead of a table");
        command->add_option("--directory", options.directory, "working directory, on the file system to measure")
            ->type_name("DIR");
        if (entry.run == python) {
            command->add_option("--python", options.python, "Python interpreter that has the larder package");
            command->add_option("--data", options.data, "images in class directories")->type_name("DIR");
        }
        if (entry.run == miss) {
            command->add_option("--url", options.url, "URL of the dataset to read; default: files made for the bench")
                ->type_name("URL");
            command->add_option("--endpoint", options.endpoint,
                                "endpoint of an s3:// dataset; credentials come from the environment");
            cli::add_rate_option(*command, "--rate", options.bytes_per_second,
                                 "remote bandwidth of all jobs together; default: one job 100 MB/s, eight 195 MB/s");
        }
        if (entry.run == joint) {
            command->add_option("--policy", options.policies, "policies to run, one or more; default: all")
                ->check(CLI::IsMember(joint_policies()));
            command->add_flag("--events", options.events,
                              "measure how soon plans converge when jobs come and go, a cache is lost, a quota is "
                              "pinned; with max-min, or with max-min and efficiency if given by --policy");
        }
        if (entry.run == reality) {
            command->add_option("--policy", options.policies, "policies to run, one or more; default: all")
                ->check(CLI::IsMember(reality_policies()));
        }
        if (entry.run == simulate || entry.run == decide_bench) {
            command->add_option("--policy", options.policies, "policies to run, separated by commas; default: all")
                ->delimiter(',');
        }
        if (entry.run == simulate) {
            command->add_option("--trace", options.trace,
                                "a trace; default: as many jobs as Philly's, drawn at random");
        }
        if (entry.run == curve || entry.run == joint || entry.run == shared) {
            command->add_option("--plot", options.plot, "draw the results as SVG")->type_name("FILE");
        }
    }
    if (const auto described = cli::describe_program(app, {.line = "larder bench"}, argc, argv)) return *described;
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return cli::end_parse(app, error, cli::asks_for_json({argv, static_cast<std::size_t>(argc)}));
    }
    const std::string name = app.get_subcommands().front()->get_name();
    for (const Entry& entry : kBenches) {
        if (name != entry.name) continue;
        try {
            const auto result = entry.run(options);
            if (!result) {
                std::fprintf(stderr, "larder bench %s: %s\n", entry.name, result.error().message.c_str());
                return 1;
            }
            if (options.json) std::printf("%s\n", json_text(*result).c_str());
            return 0;
        } catch (const std::exception& error) {
            std::fprintf(stderr, "larder bench %s: %s\n", entry.name, error.what());
            return 1;
        }
    }
    return 2;
}

}  // namespace larder::bench
