#include <boost/json/parse.hpp>
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include "base/units.h"
#include "scheduler/simulator/workload.h"

namespace larder::scheduler {
namespace {

// One table of the file. Each key is taken once; a key that was not taken is an error.
class Keys {
public:
    Keys(const toml::table& table, std::string where) : table_(table), where_(std::move(where)) {}

    std::unexpected<Error> refuse(std::string_view key, std::string_view wanted) const {
        return fail(ErrorCode::invalid_argument, where_ + "." + std::string(key) + " must be " + std::string(wanted));
    }

    Result<std::string> text(std::string_view key, std::optional<std::string> fallback = {}) {
        const toml::node* node = take(key);
        if (node == nullptr && fallback) return *fallback;
        const auto value = node == nullptr ? std::nullopt : node->value<std::string>();
        if (!value) return refuse(key, "a string");
        return *value;
    }
    Result<double> number(std::string_view key, double fallback) {
        const toml::node* node = take(key);
        if (node == nullptr) return fallback;
        const auto value = node->value<double>();
        if (!value || !(*value >= 0) || *value > 1e9) return refuse(key, "a number from 0 to 1e9");
        return *value;
    }
    // A quantity with its unit, parsed by `parse`.
    template <typename Value>
    Result<double> quantity(std::string_view key, Result<Value> (*parse)(std::string_view), std::string_view fallback) {
        const auto given = text(key, std::string(fallback));
        if (!given) return std::unexpected(given.error());
        const auto value = parse(*given);
        if (!value) return std::unexpected(value.error().within(where_ + "." + std::string(key)));
        return static_cast<double>(*value);
    }
    Result<std::map<std::string, double>> rates(std::string_view key) {
        const toml::node* node = take(key);
        const toml::table* table = node == nullptr ? nullptr : node->as_table();
        if (table == nullptr || table->empty()) return refuse(key, "a table of rates by GPU type");
        std::map<std::string, double> rates;
        for (const auto& [type, value] : *table) {
            const auto given = value.value<std::string>();
            const auto rate = given ? parse_bytes_per_second(*given) : Result<double>(0);
            const std::string name = std::string(key) + "." + std::string(type.str());
            if (!given) return refuse(name, "a string such as \"114MB/s\"");
            if (!rate) return std::unexpected(rate.error().within(where_ + "." + name));
            rates.emplace(type.str(), *rate);
        }
        return rates;
    }
    Result<std::vector<double>> fractions(std::string_view key, double most) {
        std::vector<double> values;
        const toml::node* node = take(key);
        if (node == nullptr) return values;
        const toml::array* array = node->as_array();
        if (array == nullptr) return refuse(key, "an array of numbers");
        for (const toml::node& one : *array) {
            const auto value = one.value<double>();
            if (!value || !(*value > 0) || *value > most) {
                return refuse(key, "an array of numbers above 0, at most " + std::to_string(std::lround(most)));
            }
            values.push_back(*value);
        }
        return values;
    }
    Result<void> check_all_taken() const {
        for (const auto& [key, value] : table_) {
            if (!taken_.contains(std::string(key.str())))
                return refuse(key.str(), "removed, because there is no such key");
        }
        return {};
    }

private:
    const toml::node* take(std::string_view key) {
        taken_.emplace(key);
        return table_.get(key);
    }

    const toml::table& table_;
    std::string where_;
    std::set<std::string, std::less<>> taken_;
};

constexpr double kScalingLimit = 1e4;

// Moves the value to `to`. Returns false, with `error` set, if there is no value.
template <typename Value>
bool put(Result<Value> from, auto& to, Error& error) {
    if (!from) {
        error = from.error();
        return false;
    }
    to = std::move(*from);
    return true;
}

Result<DatasetShape> dataset_of(const toml::table& table, const std::string& where) {
    Keys keys(table, where);
    DatasetShape dataset;
    double copies = 0;
    Error error;
    if (!put(keys.text("name"), dataset.name, error) ||
        !put(keys.quantity("size", parse_bytes, ""), dataset.size_bytes, error) ||
        !put(keys.number("copies", 1), copies, error)) {
        return std::unexpected(error);
    }
    if (!(dataset.size_bytes > 0)) return keys.refuse("size", "a size above 0");
    if (copies != std::floor(copies) || copies > 1e6) return keys.refuse("copies", "a whole number up to 1e6");
    dataset.copies = static_cast<std::uint32_t>(copies);
    if (auto done = keys.check_all_taken(); !done) return std::unexpected(done.error());
    return dataset;
}

Result<ModelShape> model_of(const toml::table& table, const std::string& where, const WorkloadTable& known) {
    Keys keys(table, where);
    ModelShape model;
    std::string dataset;
    double restart_ns = 0;
    Error error;
    if (!put(keys.text("name"), model.name, error) || !put(keys.text("dataset", ""), dataset, error) ||
        !put(keys.number("weight", 1), model.weight, error) || !put(keys.rates("rate"), model.rates, error) ||
        !put(keys.fractions("by_nodes", 1), model.rate_by_nodes, error) ||
        !put(keys.fractions("scaling", kScalingLimit), model.scaling, error) ||
        !put(keys.quantity("restart", parse_duration_ns, "0"), restart_ns, error) ||
        !put(keys.quantity("checkpoint", parse_bytes, "0"), model.checkpoint_bytes, error) ||
        !put(keys.number("packed", 0), model.packed_rate, error) ||
        !put(keys.number("gpu_memory", 0), model.gpu_memory_part, error)) {
        return std::unexpected(error);
    }
    model.restart_s = restart_ns / 1e9;
    if (model.packed_rate > 1) return keys.refuse("packed", "a number from 0 to 1");
    if (model.gpu_memory_part > 1) return keys.refuse("gpu_memory", "a number from 0 to 1");
    if (model.packed_rate > 0 && model.gpu_memory_part == 0) {
        return keys.refuse("gpu_memory",
                           "given for a model with packed: jobs share GPUs only if the memory of both fits");
    }
    if (!dataset.empty()) {
        const auto found = std::ranges::find(known.datasets, dataset, &DatasetShape::name);
        if (found == known.datasets.end())
            return keys.refuse("dataset", "one of the file's datasets, not \"" + dataset + "\"");
        model.dataset = static_cast<std::uint32_t>(found - known.datasets.begin());
    }
    if (auto done = keys.check_all_taken(); !done) return std::unexpected(done.error());
    return model;
}

// Calls `take(table, where)` for each table of an array; `where` names the table in messages, such as "model[3]".
template <typename Take>
Result<void> for_each_table(const toml::table& root, std::string_view name, Take take) {
    const toml::node* node = root.get(name);
    const toml::array* array = node == nullptr ? nullptr : node->as_array();
    if (array == nullptr || array->empty()) {
        return fail(ErrorCode::invalid_argument, "[[" + std::string(name) + "]] must occur at least once");
    }
    std::size_t number = 0;
    for (const toml::node& one : *array) {
        const std::string where = std::string(name) + "[" + std::to_string(number++) + "]";
        if (!one.is_table()) return fail(ErrorCode::invalid_argument, where + " must be a table");
        if (auto taken = take(*one.as_table(), where); !taken) return taken;
    }
    return {};
}

}  // namespace

Result<WorkloadTable> parse_workload(std::string_view text) {
    toml::table root;
    try {
        root = toml::parse(text);
    } catch (const toml::parse_error& thrown) {
        return fail(ErrorCode::invalid_argument,
                    "line " + std::to_string(thrown.source().begin.line) + ": " + std::string(thrown.description()));
    }
    WorkloadTable table;
    for (const auto& [key, value] : root) {
        if (key == "reference" || key == "dataset" || key == "model") continue;
        return fail(ErrorCode::invalid_argument,
                    "unknown key \"" + std::string(key.str()) + "\"; known: reference, dataset, model");
    }
    const auto reference = Keys(root, "workload").text("reference", "");
    if (!reference) return std::unexpected(reference.error());
    table.reference = *reference;
    if (root.contains("dataset")) {
        auto datasets =
            for_each_table(root, "dataset", [&](const toml::table& one, const std::string& where) -> Result<void> {
                auto dataset = dataset_of(one, where);
                if (!dataset) return std::unexpected(dataset.error());
                table.datasets.push_back(std::move(*dataset));
                return {};
            });
        if (!datasets) return std::unexpected(datasets.error());
    }
    auto models = for_each_table(root, "model", [&](const toml::table& one, const std::string& where) -> Result<void> {
        auto model = model_of(one, where, table);
        if (!model) return std::unexpected(model.error());
        table.models.push_back(std::move(*model));
        return {};
    });
    if (!models) return std::unexpected(models.error());
    return table;
}

Result<WorkloadTable> read_workload(const std::string& path) {
    std::ifstream file(path);
    if (!file) return fail_errno(errno, "open workload table " + path);
    std::ostringstream text;
    text << file.rdbuf();
    auto table = parse_workload(text.str());
    if (!table) return std::unexpected(table.error().within(path));
    return table;
}

Result<WorkloadTable> read_throughputs(const std::string& path, const std::string& name) {
    std::ifstream file(path);
    if (!file) return fail_errno(errno, "open throughputs " + path);
    std::ostringstream text;
    text << file.rdbuf();
    const auto refuse = [&](const std::string& why) { return fail(ErrorCode::invalid_argument, path + ": " + why); };
    boost::system::error_code failed;
    const boost::json::value root = boost::json::parse(text.str(), failed);
    if (failed) return refuse("it is not JSON: " + failed.message());
    const boost::json::value* models = root.is_object() ? root.get_object().if_contains(name) : nullptr;
    if (models == nullptr || !models->is_object()) return refuse("there is no table \"" + name + "\"");
    constexpr double kBytesPerStep = 1e6;
    WorkloadTable table;
    table.reference = "v100";  // of durations in Gavel's traces
    for (const auto& [model, by_gpus] : models->get_object()) {
        ModelShape& shape = table.models.emplace_back();
        shape.name = model;
        shape.bytes_per_step = kBytesPerStep;
        if (!by_gpus.is_object()) return refuse(shape.name + " is not a table by GPUs");
        for (const auto& [gpus, by_type] : by_gpus.get_object()) {
            const int count = std::atoi(std::string(gpus).c_str());
            if (count <= 0 || !by_type.is_object())
                return refuse(shape.name + ": \"" + std::string(gpus) + "\" is not a number of GPUs");
            for (const auto& [type, rate] : by_type.get_object()) {
                if (type.ends_with("_unconsolidated")) continue;
                if (!rate.is_number()) return refuse(shape.name + ": a rate is not a number");
                shape.measured_rates[static_cast<std::uint32_t>(count)][type] =
                    rate.to_number<double>() * kBytesPerStep;
            }
        }
    }
    return table;
}

Result<void> read_pair_throughputs(const std::string& path, WorkloadTable& table) {
    std::ifstream file(path);
    if (!file) return fail_errno(errno, "open throughputs of pairs " + path);
    constexpr std::string_view kHeader = "worker_type,job_a,gpus,job_b,tput_a,tput_b";
    std::map<std::string, std::uint32_t, std::less<>> models;
    for (std::uint32_t m = 0; m < table.models.size(); ++m) models.emplace(table.models[m].name, m);
    std::string line;
    for (std::uint64_t number = 1; std::getline(file, line); ++number) {
        const auto refuse = [&](const std::string& why) {
            return fail(ErrorCode::invalid_argument, path + ": line " + std::to_string(number) + ": " + why);
        };
        if (line.ends_with('\r')) line.pop_back();
        if (number == 1 && line != kHeader) return refuse("the header must be " + std::string(kHeader));
        if (number == 1 || line.empty()) continue;
        std::vector<std::string> fields;
        std::istringstream text(line);
        for (std::string field; std::getline(text, field, ',');) fields.push_back(field);
        if (fields.size() != 6) return refuse("it does not have 6 fields");
        const auto number_of = [](const std::string& field) -> std::optional<double> {
            char* end = nullptr;
            const double value = std::strtod(field.c_str(), &end);
            const bool valid = end != field.c_str() && *end == '\0' && value >= 0 && value < 1e12;
            return valid ? std::optional(value) : std::nullopt;
        };
        const auto gpus = number_of(fields[2]);
        const auto first_rate = number_of(fields[4]);
        const auto second_rate = number_of(fields[5]);
        if (!gpus || *gpus < 1) return refuse("\"" + fields[2] + "\" is not a number of GPUs");
        if (!first_rate || !second_rate) return refuse("a throughput is not a number from 0 on");
        if (*gpus != 1) continue;
        PairShape pair{.gpu_type = fields[0]};
        for (const auto& [name, model] : {std::pair(&fields[1], &pair.first), std::pair(&fields[3], &pair.second)}) {
            const auto found = models.find(*name);
            if (found == models.end()) return refuse("--throughputs has no model \"" + *name + "\"");
            *model = found->second;
        }
        pair.first_rate = *first_rate * table.models[pair.first].bytes_per_step;
        pair.second_rate = *second_rate * table.models[pair.second].bytes_per_step;
        table.pairs.push_back(std::move(pair));
    }
    if (table.pairs.empty()) return fail(ErrorCode::invalid_argument, path + ": no row is of jobs with one GPU");
    return {};
}

}  // namespace larder::scheduler
