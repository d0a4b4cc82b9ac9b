// Does the simulated LRU hit as often as a real LRU? Compares the closed form for one job, the simulator's estimate for
// one and several jobs (Che's approximation), and an LRU of blocks read in random orders. It uses no clock, so the
// results are the same on every machine.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "allocator/model.h"
#include "bench/bench_options.h"
#include "scheduler/simulator/cache_system.h"
#include "tests/oracle/lru_blocks.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

using oracle::LruBlocks;

namespace json = boost::json;

struct LruSetting {
    const char* name;
    double kappa;  // cache size over the size of all datasets
    std::vector<LruBlocks::Job> jobs;
};

std::vector<LruSetting> lru_settings(std::size_t blocks) {
    std::vector<LruSetting> settings;
    for (const double kappa : {0.1, 0.25, 0.5, 0.75, 0.9}) {
        settings.push_back({.name = "one job", .kappa = kappa, .jobs = {{.blocks = blocks}}});
    }
    settings.push_back({.name = "two datasets, one read four times as fast",
                        .kappa = 0.5,
                        .jobs = {{.dataset = 0, .blocks = blocks, .rate = 4}, {.dataset = 1, .blocks = blocks}}});
    settings.push_back({.name = "two datasets, the larger read twice as fast",
                        .kappa = 0.5,
                        .jobs = {{.dataset = 0, .blocks = blocks}, {.dataset = 1, .blocks = 3 * blocks, .rate = 2}}});
    settings.push_back({.name = "one dataset, two jobs at 2 and 3",
                        .kappa = 0.3,
                        .jobs = {{.blocks = blocks, .rate = 2}, {.blocks = blocks, .rate = 3}}});
    return settings;
}

std::size_t blocks_of(const LruSetting& setting) {
    std::size_t blocks = 0;
    for (std::size_t j = 0; j < setting.jobs.size(); ++j) {
        const auto earlier = std::span(setting.jobs).first(j);
        const bool is_counted =
            std::ranges::find(earlier, setting.jobs[j].dataset, &LruBlocks::Job::dataset) != earlier.end();
        if (!is_counted) blocks += setting.jobs[j].blocks;
    }
    return blocks;
}

std::vector<double> simulated_hits(const LruSetting& setting, std::size_t capacity) {
    std::vector<scheduler::SimulatedReader> readers(setting.jobs.size());
    std::vector<scheduler::Store> stores;
    stores.reserve(setting.jobs.size());
    for (std::size_t j = 0; j < readers.size(); ++j) {
        const LruBlocks::Job& job = setting.jobs[j];
        readers[j].rate = static_cast<double>(job.rate);
        readers[j].first_epoch = false;
        auto store = std::ranges::find(stores, job.dataset, &scheduler::Store::dataset);
        if (store == stores.end()) {
            stores.push_back({.dataset = job.dataset, .size_bytes = static_cast<double>(job.blocks)});
            store = stores.end() - 1;
        }
        store->readers.push_back(&readers[j]);
    }
    std::vector<scheduler::Store*> all_stores;
    all_stores.reserve(stores.size());
    for (scheduler::Store& store : stores) all_stores.push_back(&store);
    scheduler::set_lru_hits(all_stores, static_cast<double>(capacity));
    std::vector<double> hits;
    hits.reserve(readers.size());
    for (const scheduler::SimulatedReader& reader : readers) hits.push_back(reader.hit_ratio);
    return hits;
}

void add_rows(json::array& rows, const LruSetting& setting) {
    constexpr std::size_t kEpochsBefore = 3;
    constexpr std::size_t kEpochs = 20;
    const auto capacity = static_cast<std::size_t>(setting.kappa * static_cast<double>(blocks_of(setting)));
    std::size_t epoch = 0;  // of the slowest job
    for (const LruBlocks::Job& job : setting.jobs) epoch = std::max(epoch, job.blocks / job.rate);
    LruBlocks lru(capacity, setting.jobs);
    lru.run(kEpochsBefore * epoch, false);
    lru.run(kEpochs * epoch, true);
    const std::vector<double> simulated = simulated_hits(setting, capacity);
    for (std::size_t j = 0; j < simulated.size(); ++j) {
        json::value closed_form = nullptr;
        if (setting.jobs.size() == 1) closed_form = allocator::lru_hit_ratio(setting.kappa);
        rows.push_back(json::object{{"setting", setting.name},
                                    {"job", j},
                                    {"kappa", setting.kappa},
                                    {"closed_form", std::move(closed_form)},
                                    {"simulated", simulated[j]},
                                    {"blocks", lru.jobs()[j].hits / lru.jobs()[j].reads}});
    }
}

void print_lru(const json::array& rows) {
    cli::Table table({"SETTING", ">JOB", ">CACHED", ">CLOSED FORM", ">SIMULATED", ">BLOCKS"});
    const auto ratio = [](const json::value& value) {
        char text[16] = "-";
        if (value.is_number()) std::snprintf(text, sizeof text, "%.3f", value.to_number<double>());
        return std::string(text);
    };
    for (const json::value& row : rows) {
        const json::object& fields = row.as_object();
        table.add({cli::text_at(fields, "setting"),
                   std::to_string(static_cast<std::uint64_t>(cli::number_at(fields, "job"))), ratio(fields.at("kappa")),
                   ratio(fields.at("closed_form")), ratio(fields.at("simulated")), ratio(fields.at("blocks"))});
    }
    std::printf("%s", table.text().c_str());
}

}  // namespace

Result<json::value> lru_bench(const BenchOptions& options) {
    json::array rows;
    for (const LruSetting& setting : lru_settings(options.quick ? 4000 : 50'000)) add_rows(rows, setting);
    if (!options.json) print_lru(rows);
    return rows;
}

}  // namespace larder::bench
